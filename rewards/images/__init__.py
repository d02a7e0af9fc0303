"""Rewards of what an image shows, without a learned preference."""
