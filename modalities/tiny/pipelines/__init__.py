"""Tiny random pipelines of diffusers' own classes: a family is its parts, its call's arguments, and its guidance."""
