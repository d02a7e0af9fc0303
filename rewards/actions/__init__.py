"""Rewards of clicks and actions on a screen."""
