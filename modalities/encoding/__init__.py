"""From prompts with media to the tensors that a network reads."""
