"""Policies on flow and diffusion models: sampling by plan, forward outputs, gradients of rewards."""
