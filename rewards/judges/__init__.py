"""Rewards by models that compare outputs or answer questions about them."""
