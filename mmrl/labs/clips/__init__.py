"""Short videos in which lamps appear, light up and rise, and the tiny Qwen2.5-VL that says when."""
