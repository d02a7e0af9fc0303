"""The lab of written prompts: requests in other words, which a policy turns into prompts of the shapes lab."""
