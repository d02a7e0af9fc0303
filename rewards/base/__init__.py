"""Base classes of rewards, and what rewards share."""
