"""Answers drawn token by token."""

from dataclasses import dataclass

from .base.tokens import TokenSampler


@dataclass(frozen=True)
class Autoregressive(TokenSampler):
    """Each token from softmax(logits / temperature), if asked cut to its likeliest tokens and normalised.

    `max_tokens`: the budget of an answer, its end token included. `temperature` 0 takes the likeliest token: for
    evaluation only. `top_k`, then `top_p` in (0, 1], then `min_p` in [0, 1] (relative to the likeliest) cut the
    distribution; log-probs are those of what is left. `stop`: texts that end an answer, kept at its end.
    `truncated`: an answer that the budget cut is kept as it is, or masked out of the update and judged all the same
    (overlong filtering, DAPO, Yu et al. 2025, arXiv 2503.14476, section 3.4). `controls`: further answers of a group to
    the same question about the same video with its frames in disorder, which rewards may compare with and nothing is
    learned from (T-GRPO, Feng et al. 2025, "Video-R1", arXiv 2503.21776, section 3.1, has half as many as answers).
    `greedy`: one more answer, of the likeliest tokens, which the advantage `remax` compares with and nothing is learned
    from.
    """
