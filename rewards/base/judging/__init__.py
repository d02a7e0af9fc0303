"""Judges: models that are asked in words about samples, here or at an address, and how their replies count."""
