"""Plug-ins: environments that agents act in."""
