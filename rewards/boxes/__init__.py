"""Rewards of boxes and masks that an answer gives."""
