"""Images and videos of prompts."""
