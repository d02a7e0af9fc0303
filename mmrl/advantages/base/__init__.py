"""Base classes and shared functions of advantages."""
