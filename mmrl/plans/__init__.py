"""How a group is sampled, as values."""
