"""Policies that answer in tokens, agents among them: rollout, turns, forward outputs."""
