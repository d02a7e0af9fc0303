"""Stock pipelines of diffusers, paused where their loop takes a noise level, calls the network, and takes a step."""
