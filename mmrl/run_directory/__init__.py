"""A run directory on disk, readable without torch."""
