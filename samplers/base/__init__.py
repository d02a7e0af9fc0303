"""Base classes of samplers, and what samplers share."""
