"""Pictures and videos that belong to prompts."""
