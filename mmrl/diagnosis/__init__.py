"""The doctor: why the reward of a run does not rise, in words, with the number and the remedy."""
