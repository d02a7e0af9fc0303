"""Group-relative advantages: the difference of a reward from the mean of its group, over the standard deviation."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Paths, Scores
from mmrl.core.numerics import group_mean, group_std, masked_mean

Std = Literal["group", "batch", "centred_batch", "none"]


@dataclass(frozen=True)
class Grpo(Checked):
    """A = (R - mean of the group) / (std + epsilon), clipped to +-clip.

    Shao et al. 2024, "DeepSeekMath", arXiv 2402.03300, section 4.1.2; epsilon and clip of yifan123/flow_grpo. The std
    is that of
      group: the sample's group; population (flow_grpo), or divided by n - 1 (DanceGRPO) with `is_unbiased`;
      batch: all rewards of the batch, population (flow_grpo's `global_std`); differences between groups count in it;
      centred_batch: the same after each group's mean is taken off, i.e. the root mean square of R - mean;
      none: nothing is divided (Liu et al. 2025, "Dr. GRPO", arXiv 2503.20783).
    Invalid samples enter no statistic and get 0. All members get 0 in a group whose own std is not above `min_std`:
    with equal rewards, or a single valid member.

    Raises ValueError for settings out of range.
    """

    # The divisor of the centred reward: the standard deviation of its `group`, of the `batch`, of the batch after
    # centring (`centred_batch`), or `none`.
    std: Std = "group"
    is_unbiased: bool = False  # for `std: group` only: divide by n - 1
    epsilon: Annotated[float, Field(ge=0)] = 1e-4  # added to the standard deviation
    min_std: Annotated[float, Field(ge=0)] = 0.0  # a group whose own spread is not above this gets advantage 0
    clip: Annotated[float, Field(gt=0)] | None = 5.0  # largest size of an advantage; `null`: any

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_unbiased and self.std != "group":
            raise ValueError(f"is_unbiased is for std 'group' only, got std {self.std!r}")

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32."""
        # float64: the mean of equal float32 rewards is then exactly that reward, and their spread exactly 0
        total = scores.total.double()
        counted = self.counted(total, scores)
        centred = total - self.baseline(total, counted, scores, paths)
        spread = group_std(total, scores.group, counted, unbiased=self.is_unbiased)
        scaled = centred
        if self.std != "none":
            scaled = centred / (self._std(total, centred, spread, counted) + self.epsilon)
        if self.clip is not None:
            scaled = scaled.clamp(-self.clip, self.clip)
        return torch.where(scores.valid & (spread > self.min_std), scaled, torch.zeros_like(scaled)).float()

    def counted(self, total: Tensor, scores: Scores) -> Tensor:
        """Returns the valid samples [B] (bool) that enter mean and std."""
        return scores.valid

    def baseline(self, total: Tensor, counted: Tensor, scores: Scores, paths: Paths | None) -> Tensor:
        """Returns the baseline [B] of each reward, float64, the same for a group."""
        return group_mean(total, scores.group, counted)

    def _std(self, total: Tensor, centred: Tensor, spread: Tensor, counted: Tensor) -> Tensor:
        if self.std == "group":
            return spread
        weight = counted.to(total.dtype)
        if self.std == "batch":
            centred = total - masked_mean(total, weight)
        return masked_mean(centred.square(), weight).sqrt()
