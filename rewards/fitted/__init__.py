"""Rewards that are fitted in the run to the samples that they judge."""
