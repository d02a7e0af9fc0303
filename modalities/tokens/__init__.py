"""Completions: generation on a shared prefix, log-probs, packing."""
