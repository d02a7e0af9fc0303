"""Rewards that count only where another reward reaches a threshold."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.data import Scores
from mmrl.core.declarations import MixDeclaration
from mmrl.core.mixes import Plain


@dataclass(frozen=True)
class Gate(Plain):
    """R = w_by r_by + (sum of the others, each with its weight, where r_by >= threshold; else `otherwise`).

    For example, an answer that counts only in the right format. The weight of the reward `by` may be 0, so that it is
    only a gate. Raises ValueError for numbers that are not finite, or an unknown label.
    """

    by: str  # the label of the reward that is the gate; its own weight may be 0
    threshold: float = 0.5  # the gate is open where the reward `by` is at least this; must lie in its range
    otherwise: float = 0.0  # what stands for the other rewards where the gate is shut

    def __post_init__(self) -> None:
        if not (math.isfinite(self.threshold) and math.isfinite(self.otherwise)):
            raise ValueError(f"threshold and otherwise must be finite, got {self.threshold} and {self.otherwise}")

    @property
    def declaration(self) -> MixDeclaration:
        return MixDeclaration(requires_rewards=frozenset({self.by}))

    def check(self, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
        """Raises ValueError where there is no reward `by`, or the threshold leaves the gate always open or shut."""
        if self.by not in ranges:
            raise ValueError(f"mix 'gate': there is no reward {self.by!r}; known are {', '.join(ranges)}")
        low, high = ranges[self.by]
        if not low < self.threshold <= high:
            raise ValueError(
                f"mix 'gate': reward {self.by!r} runs from {low:g} to {high:g}; a threshold of {self.threshold:g} "
                "would leave the gate always open or always shut"
            )

    def __call__(self, scores: Scores) -> Tensor:
        """Returns the mixed rewards [B], float32."""
        column = scores.names.index(self.by)
        gate = scores.values[:, column]
        own = scores.weights[column] * gate if scores.weights[column] else torch.zeros_like(gate)
        return own + torch.where(gate >= self.threshold, scores.weighted_sum - own, self.otherwise)
