"""vLLM as the inference engine that samples completions."""
