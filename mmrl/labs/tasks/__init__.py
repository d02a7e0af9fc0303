"""Forms, menus and wizards on small windows, tasks of several clicks, and the tiny Qwen2.5-VL that works on them."""
