"""REC: REINFORCE on older samples, with the importance weight and the clip as switches of their own."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch

from .base.ratio import RatioLoss, ratio_of


@dataclass(frozen=True)
class Rec(RatioLoss):
    """The term -stop_gradient(w m) A log(new / old), w the importance weight and m 0 for decisions that are clipped.

    Yao et al. 2025, "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm: Demystifying Some Myths About GRPO
    and Its Friends", arXiv 2509.24203, and its code in Trinity-RFT, whose default ranges these are. m is 1 for
      one_side: ratios up to 1 + clip_high where A >= 0, from 1 - clip_low on where A <= 0, as in GRPO;
      two_side: ratios within both, whatever the advantage;
      ring: ratios within both, and those that have moved far against their advantage, below 1 - far_low where A >= 0
          and above 1 + far_high where A <= 0;
      none: all.
    The weight "ratio" with "one_side" has GRPO's gradient; "none" with "none" is REINFORCE. The paper's finding is that
    the clip, and not the weight, keeps training on older samples stable.

    Raises ValueError for settings out of range.
    """

    # The importance weight: `none` (1), the `ratio`, or the ratio `truncated` to 1 - far_low ... 1 + far_high.
    weight: Literal["none", "ratio", "truncated"] = "none"
    clip: Literal["none", "one_side", "two_side", "ring"] = "one_side"  # which ratios lose their gradient
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2  # how far below 1 a ratio may be
    clip_high: Annotated[float, Field(gt=0)] = 0.2  # how far above 1 a ratio may be
    far_low: Annotated[float, Field(gt=0, le=1)] = 0.6  # the outer range, of `ring` and `truncated`, below 1 ...
    far_high: Annotated[float, Field(gt=0)] = 2.0  # ... and above 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip == "ring" and not (self.far_low >= self.clip_low and self.far_high >= self.clip_high):
            raise ValueError(
                f"far_low and far_high must be at least clip_low and clip_high, {self.clip_low:g} and "
                f"{self.clip_high:g}, got {self.far_low:g} and {self.far_high:g}"
            )

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio, advantages = compared[0], batch.advantages
        ratio = ratio_of(log_ratio.detach())
        is_kept = self._is_kept(ratio, advantages)
        weight = torch.ones_like(ratio)
        if self.weight != "none":
            weight = ratio if self.weight == "ratio" else ratio.clamp(1 - self.far_low, 1 + self.far_high)
        terms = -weight * is_kept.to(ratio.dtype) * advantages * log_ratio
        return terms, {"ratio": ratio, "clip_fraction": (~is_kept).to(ratio.dtype)}

    def _is_kept(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        """Returns the decisions [B, K] (bool) that have a gradient."""
        is_low_enough, is_high_enough = ratio <= 1 + self.clip_high, ratio >= 1 - self.clip_low
        if self.clip == "one_side":
            return torch.where(advantages > 0, is_low_enough, torch.where(advantages < 0, is_high_enough, True))
        is_near = is_low_enough & is_high_enough
        if self.clip == "ring":
            has_come_back = torch.where(advantages >= 0, ratio <= 1 - self.far_low, ratio >= 1 + self.far_high)
            return is_near | has_come_back
        return is_near if self.clip == "two_side" else torch.ones_like(is_near)
