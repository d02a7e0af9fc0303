"""Small windows with buttons to click and to box, and the tiny Qwen2.5-VL that answers."""
