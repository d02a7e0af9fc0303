"""Rewards of an agent's turns and episodes."""
