"""What a real vLLM shows, on the CPU: that it agrees with the trainer, that runs learn by it, and how fast it is."""
