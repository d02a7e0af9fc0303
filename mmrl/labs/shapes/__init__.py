"""Images of one coloured shape, and the tiny Stable Diffusion 3 that draws them."""
