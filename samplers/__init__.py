"""Samplers, one file each: the file's name is the sampler's name in a config."""
