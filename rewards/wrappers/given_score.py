"""The score that the data gives the outputs that it brings."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch


@dataclass(frozen=True)
class GivenScore:
    """The score that the data gives each output of the samplers `given` and `given_and_drawn`; of a pair 1 and 0.

    `drawn` is the score of samples that the policy draws beside them. The target's `given_scores` holds the others,
    which the layouts `given_images` and `given_answers` read.

    Raises ValueError for a score that is not finite.
    """

    source: ClassVar[str] = "the data"
    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)  # unbounded: the data says what it says
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"given", "target.given_scores"})
    batch_size: ClassVar[int | None] = None

    drawn: float = 0.0  # the score of a sample that the policy draws

    def __post_init__(self) -> None:
        if not math.isfinite(self.drawn):
            raise ValueError(f"drawn must be a finite number, got {self.drawn}")

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32."""
        assert batch.outputs.given is not None, "scoring checks needs"
        pairs = zip(batch.prompts, batch.outputs.given.tolist(), strict=True)
        return torch.tensor(
            [float(prompt.target["given_scores"][n]) if n >= 0 else self.drawn for prompt, n in pairs],
            dtype=torch.float32,
        )
