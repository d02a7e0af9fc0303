"""Base classes of advantages, and what advantages share."""
