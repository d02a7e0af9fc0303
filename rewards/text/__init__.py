"""Rewards of what a text says."""
