"""Plug-ins: worlds that agents act in."""
