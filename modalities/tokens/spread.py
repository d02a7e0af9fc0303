"""How far apart the answers of a group are in what they expect next, position by position, in blocks of positions.

Maths: docs/maths/token-policies.md#spread-of-a-group
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .log_probs import OutputHead
from .sampling import SamplingDistribution, banned_mask

LARGEST = 11.0  # nats: differences of log-probs are cut to this size, as by the authors


@torch.no_grad()
def group_spread(states: Sequence[Tensor], head: OutputHead, distribution: SamplingDistribution, chunk: int) -> Tensor:
    """Returns the spread [T] of a group at the positions of its longest answer, float32 at least.

    Dang et al. 2025 (TW-GRPO), arXiv 2505.24718, in the form of the authors' code (the paper's own equation was not
    compared), which is
      D_t = 1/G sum_i sum_v (exp(d_itv) - d_itv - 1),  d_itv = (1/G sum_j log p_jtv) - log p_itv, cut to +-11,
    with log p_it the log-probs of all tokens v behind position t of answer i. It is 0 where all answers expect the
    same, and counts all tokens alike, so rare tokens weigh as much as likely ones. An answer that has ended expects
    every token alike. Banned tokens do not count; top_p, top_k and min_p are left out, the temperature is not.

    Args:
        states: of each of G answers, at least one, the hidden states [T_i, H] from which its tokens are predicted.
        chunk: logits held at once, of all answers; at least one position is read.
    """
    length = [len(one) for one in states]
    banned = banned_mask(distribution, len(head.weight), head.weight.device)
    num_tokens = len(head.weight) - (0 if banned is None else int(banned.sum()))
    size = max(1, chunk // (len(states) * len(head.weight)))
    parts = []
    for start in range(0, max(length), size):
        count = min(size, max(length) - start)
        there = [one[start : start + count] for one in states]
        logits = head.logits(torch.cat(there)) / distribution.temperature
        log_p = (logits if banned is None else logits[:, ~banned]).log_softmax(1)
        every = log_p.new_full((len(states), count, num_tokens), -math.log(num_tokens))
        for row, own in enumerate(log_p.split([len(one) for one in there])):
            every[row, : len(own)] = own
        gap = (every.mean(0) - every).clamp(-LARGEST, LARGEST)
        parts.append((gap.exp() - gap - 1).sum(2).mean(0))
    return torch.cat(parts)
