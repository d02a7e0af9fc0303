"""Mixes: how the rewards of a sample become one number; the file name is the name in a config."""
