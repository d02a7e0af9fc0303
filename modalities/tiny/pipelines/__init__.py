"""Tiny random pipelines of diffusers' own classes: a family is its parts, the arguments of its call, and its guidance."""
