"""A reward for the length of an answer, without labels: it grows to a best length, and falls behind it."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch


@dataclass(frozen=True)
class LengthCurve(Checked):
    """The length reward of an answer of n tokens, the end token included, with x = n / max_tokens and p = `best`:

      1 - (1 - x / p)^2              x <= p
      1 - 2 ((x - p) / (1 - p))^2    p < x <= 1
      -1                             x > 1
    Xin et al. 2025, "Surrogate Signals from Format and Length", arXiv 2505.19439: with the format alone it stands in
    for right answers. It is 1 at p, 0 for no token at all and -1 at the budget, where answers are cut off. The paper
    lets the length count for answers in the right format only: the wrapper `gated`.
    """

    max_tokens: Annotated[int, Field(ge=1)]  # the token budget of the sampler
    best: Annotated[float, Field(gt=0, lt=1)] = 0.5  # the best length, as a share of the budget; the paper's

    source: ClassVar[str] = "Xin et al. 2025 (format and length as surrogates), arXiv 2505.19439"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"num_tokens"})
    batch_size: ClassVar[int | None] = None

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32."""
        assert batch.outputs.num_tokens is not None, "scoring checks needs"
        share = (batch.outputs.num_tokens.to(torch.float64) / self.max_tokens).clamp(max=1)
        rising = 1 - (1 - share / self.best) ** 2
        falling = 1 - 2 * ((share - self.best) / (1 - self.best)) ** 2
        return torch.where(share <= self.best, rising, falling).float()
