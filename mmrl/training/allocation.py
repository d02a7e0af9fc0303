"""The allocation of a budget of further samples: to the prompts whose mean score is least certain."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.core.config import MoreSettings
from mmrl.core.data import Scores
from mmrl.scoring.metrics import plain_total


def half_width(spread: Tensor, count: Tensor, confidence: float) -> Tensor:
    """Returns [P] half of the confidence interval of a mean: h(n) = t_{(1 + confidence) / 2, n - 1} s / sqrt(n).

    Args:
        spread: [P] s, the unbiased standard deviation of the samples. count: [P] n, at least 2.
        confidence: in (0, 1); t is the quantile of Student's distribution.
    """
    from scipy.special import stdtrit  # takes longer to import than a config to check

    quantile = torch.from_numpy(stdtrit(count.numpy() - 1.0, (1 + confidence) / 2))
    return quantile * spread / count.sqrt()


def priority(spread: Tensor, judged: Tensor, sampled: Tensor, confidence: float, exploration: float) -> Tensor:
    """Returns [P] h(n) - h(n + 1) + exploration sqrt(ln(1 + T) / m): the worth of one more sample of each prompt.

    The first term is how much the interval of the mean is expected to narrow, the second a bonus for few samples: Bamba
    et al. 2025, "XRPO: Pushing the limits of GRPO with Targeted Exploration and Exploitation", arXiv 2510.06672,
    section 3. The spread is taken to stay as it is, so that binary and graded scores are alike. With fewer than two
    samples that could be judged the interval is unknown, and the bonus alone counts.

    Args:
        spread: [P] float64 s. judged: [P] float64 n, samples that could be judged. sampled: [P] float64 m, at least 1,
            all samples so far; T is their sum.
    """
    narrows = half_width(spread, judged.clamp(min=2), confidence) - half_width(
        spread, judged.clamp(min=2) + 1, confidence
    )
    bonus = exploration * ((1 + sampled.sum()).log() / sampled).sqrt()
    return torch.where(judged >= 2, narrows, torch.zeros_like(narrows)) + bonus


def allocated(
    spread: Tensor,
    judged: Tensor,
    sampled: Tensor,
    room: Tensor,
    budget: int,
    *,
    confidence: float,
    exploration: float,
) -> Tensor:
    """Returns [P] int64: the further samples of each prompt, given one after the other to the highest priority then.

    A sample that is given counts as sampled and judged in what comes after it; of equal priorities the first wins.

    Args:
        room: [P] int64, how many samples a prompt may get. budget: how many there are; fewer are given where no room is
            left.
    """
    added = torch.zeros_like(room)
    for _ in range(min(budget, int(room.sum()))):
        worth = priority(spread, judged + added, sampled + added, confidence, exploration)
        added[int(torch.where(added < room, worth, -torch.inf).argmax())] += 1
    return added


def further_members(
    scores: Scores, prompt_indices: Sequence[int], size: int, settings: MoreSettings, number: int
) -> list[int]:
    """Returns the number of members that each of the `prompt_indices` gets in round `number`; 0 for one without scores.

    `size`: members of a group before the first round. Scores are totals, without a mix that compares within groups.
    """
    total, unknown = plain_total(scores).double(), torch.zeros((), dtype=torch.float64)
    of_prompt = [scores.prompt_index == index for index in prompt_indices]
    own = [total[members & scores.valid] for members in of_prompt]
    spread = torch.stack([values.std() if len(values) > 1 else unknown for values in own])
    judged = torch.tensor([len(values) for values in own], dtype=torch.float64)
    sampled = torch.tensor([int(members.sum()) for members in of_prompt])
    room = torch.where(sampled > 0, size + settings.per_prompt - sampled, 0)
    return allocated(
        spread,
        judged,
        sampled.double().clamp(min=1),
        room,
        settings.in_round(number),
        confidence=settings.confidence,
        exploration=settings.exploration,
    ).tolist()
