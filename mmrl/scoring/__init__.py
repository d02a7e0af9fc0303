"""Rewards as they are called: batches, calls, failures, metrics."""
