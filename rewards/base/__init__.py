"""Base classes of rewards, and the readers and formulas that rewards share."""
