"""Flow samplers: one file each; the file name is the name in a config."""
