"""Which prompts a budget of further samples goes to: those whose mean score is least certain."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.core.config import MoreSettings
from mmrl.core.data import Scores
from mmrl.scoring.metrics import plain_total


def half_width(spread: Tensor, count: Tensor, confidence: float) -> Tensor:
    """[P] half of the confidence interval of a mean: h(n) = t_{(1 + confidence) / 2, n - 1} s / sqrt(n).

    Args:
        spread: [P] s, the unbiased standard deviation of the samples. count: [P] n, at least 2.
        confidence: in (0, 1); t is the quantile of Student's distribution.
    """
    from scipy.special import stdtrit  # takes longer to import than a config to check

    quantile = torch.from_numpy(stdtrit(count.numpy() - 1.0, (1 + confidence) / 2))
    return quantile * spread / count.sqrt()


def priority(spread: Tensor, judged: Tensor, drawn: Tensor, confidence: float, exploration: float) -> Tensor:
    """[P] h(n) - h(n + 1) + exploration sqrt(ln(1 + T) / m): what one more sample of each prompt is worth.

    How much the interval of its mean is expected to narrow, and a bonus for having drawn little: Bamba et al. 2025,
    "XRPO: Pushing the Limits of GRPO with Targeted Exploration and Exploitation", arXiv 2510.06672, section 3. The
    spread is taken to stay as it is, so that binary and graded scores are alike. Where fewer than two samples could be
    judged nothing is known of the interval, and the bonus alone counts.

    Args:
        spread: [P] float64 s. judged: [P] float64 n, samples that could be judged. drawn: [P] float64 m, at least 1,
            all samples so far; T is their sum.
    """
    narrows = half_width(spread, judged.clamp(min=2), confidence) - half_width(
        spread, judged.clamp(min=2) + 1, confidence
    )
    bonus = exploration * ((1 + drawn.sum()).log() / drawn).sqrt()
    return torch.where(judged >= 2, narrows, torch.zeros_like(narrows)) + bonus


def allocated(
    spread: Tensor,
    judged: Tensor,
    drawn: Tensor,
    room: Tensor,
    budget: int,
    *,
    confidence: float,
    exploration: float,
) -> Tensor:
    """[P] int64: how many further samples each prompt gets, one after the other to the highest priority then.

    A sample that is given counts as drawn and judged in what comes after it; of equal priorities the first wins.

    Args:
        room: [P] int64, how many a prompt may get. budget: how many there are; fewer are given where no room is left.
    """
    given = torch.zeros_like(room)
    for _ in range(min(budget, int(room.sum()))):
        worth = priority(spread, judged + given, drawn + given, confidence, exploration)
        given[int(torch.where(given < room, worth, -torch.inf).argmax())] += 1
    return given


def further_members(
    scores: Scores, prompt_indices: Sequence[int], size: int, settings: MoreSettings, number: int
) -> list[int]:
    """How many members each of the `prompt_indices` gets in round `number`; 0 for one that has none in the scores.

    `size`: members of a group before the first round. Scores are totals, without a mix that compares within groups.
    """
    total, unknown = plain_total(scores).double(), torch.zeros((), dtype=torch.float64)
    of_draw = [scores.prompt_index == draw for draw in prompt_indices]
    own = [total[members & scores.valid] for members in of_draw]
    spread = torch.stack([values.std() if len(values) > 1 else unknown for values in own])
    judged = torch.tensor([len(values) for values in own], dtype=torch.float64)
    drawn = torch.tensor([int(members.sum()) for members in of_draw])
    room = torch.where(drawn > 0, size + settings.per_prompt - drawn, 0)
    return allocated(
        spread,
        judged,
        drawn.double().clamp(min=1),
        room,
        settings.in_round(number),
        confidence=settings.confidence,
        exploration=settings.exploration,
    ).tolist()
