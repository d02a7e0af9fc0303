"""Clips of one coloured shape that moves, and the tiny LTX-Video that makes them."""
