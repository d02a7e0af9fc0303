"""Rewards of videos, and of spans of time in them."""
