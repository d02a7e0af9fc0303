"""Rewards by models of preference, aesthetics and fit to the prompt."""
