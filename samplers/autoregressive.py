"""Answers sampled token by token."""

from dataclasses import dataclass

from .base.tokens import TokenSampler


@dataclass(frozen=True)
class Autoregressive(TokenSampler):
    """A sampler of single answers: each token from softmax(logits / temperature).

    `top_k`, then `top_p`, then `min_p` (relative to the likeliest token) cut the distribution to its likeliest tokens;
    the rest is normalised, and log-probs are those of the cut distribution. `truncated: mask` is the overlong filtering
    of DAPO (Yu et al. 2025, arXiv 2503.14476, section 3.4). `controls` are those of T-GRPO (Feng et al. 2025,
    "Video-R1", arXiv 2503.21776, section 3.1, has half as many as answers).
    """
