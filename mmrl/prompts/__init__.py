"""Where prompts come from: data sets, their rows, the stream of a run."""
