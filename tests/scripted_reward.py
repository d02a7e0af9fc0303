"""A reward that a test writes down, scorers of it, and rollouts that it can tell apart."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.scoring.scorer import RewardTerm, Scorer

Judge = Callable[[RewardBatch], Any]


@dataclass
class ScriptedReward:
    """A reward that a test writes down; it remembers the samples of each call by their images' value."""

    source: ClassVar[str] = "this test"
    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images"})

    judge: Judge
    granularity: Granularity = "sample"
    batch_size: int | None = None
    calls: list[list[float]] = field(default_factory=list)

    def score(self, batch: RewardBatch) -> Tensor:
        self.calls.append(number(batch).tolist())
        return self.judge(batch)  # type: ignore[no-any-return]


def number(batch: RewardBatch) -> Tensor:
    """[B] the value that fills each sample's image."""
    assert batch.outputs.images is not None
    return batch.outputs.images[:, 0, 0, 0]


def refuse(*bad: float) -> Judge:
    """Ten times the sample's number; raises if one of `bad` is in the batch."""

    def judge(batch: RewardBatch) -> Tensor:
        for value in number(batch).tolist():
            if value in bad:
                raise ValueError(f"cannot see {value:g}")
        return number(batch) * 10

    return judge


def rollout(num_groups: int = 2, size: int = 2, first: int = 0) -> Rollout:
    """Groups of equal size, numbered from `first`; each image is filled with its sample's number."""
    count = num_groups * size
    images = torch.arange(float(count)) + first * size
    return Rollout(
        prompts=tuple(Prompt(f"prompt {first + n}") for n in range(num_groups)),
        keys=tuple(GroupKey(seed=0, iteration=0, prompt_index=first + n) for n in range(num_groups)),
        prompt=torch.arange(num_groups).repeat_interleave(size),
        group=torch.arange(first, first + num_groups).repeat_interleave(size),
        episode=torch.arange(count),
        turn=torch.arange(count),
        outputs=Outputs(images=images.view(-1, 1, 1, 1).expand(-1, 3, 2, 2)),
        blocks=(),
        trace=None,
        num_calls=0,
    )


def term(name: str, reward: Any, weight: float = 1.0) -> RewardTerm:
    return RewardTerm(name, reward, weight)


def scorer(*judges: Judge | ScriptedReward, weights: tuple[float, ...] = (), max_failed_share: float = 1.0) -> Scorer:
    rewards = [judge if isinstance(judge, ScriptedReward) else ScriptedReward(judge) for judge in judges]
    weights = weights or (1.0,) * len(rewards)
    terms = (term(f"r{n}", reward, weights[n]) for n, reward in enumerate(rewards))
    return Scorer(tuple(terms), max_failed_share)
