"""Frozen networks behind rewards, and their random small twins."""
