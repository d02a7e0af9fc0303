"""Base classes of losses, and what losses share."""
