"""From a config to the parts of a run, and what cannot go together."""
