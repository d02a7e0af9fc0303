"""Rewards made of other rewards, functions or data."""
