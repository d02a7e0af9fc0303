"""PRDP: regression of reward differences on log-ratios of paths, kept near the old weights."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch, OutputsByWeights
from mmrl.core.data import WeightsName

from .base.log_ratios import Anchor
from .base.paths import PairLoss, Path


@dataclass(frozen=True)
class Prdp(PairLoss):
    """The term max((m - d / beta)^2, (m' - d / beta)^2) of each pair, d the difference of its rewards.

    Deng et al. 2024, "PRDP: Proximal Reward Difference Prediction for Large-Scale Reward Finetuning of Diffusion
    Models", arXiv 2402.08714, eqs. 14, 18, 20 and 21; beta and clip of its large runs (table 4). m is the difference of
    the pair's log-ratios to the reference, and m' the same with the log-ratio of every decision kept within +-clip of
    that of the old weights.

    The paper's equations sum log-ratios over steps; its listing (appendix G) averages them, which is the default here,
    since table 4 is of that code. `path: sum` with beta / T for T steps is T^2 times the same. The listing leaves out
    pairs of equal rewards; algorithm 1 and `pairs: all` include them. The loss is the mean over pairs, as in the
    listing; algorithm 1 divides their sum by B^2. Without a clip this is REBEL against the reference with
    eta = 1 / beta, divided by beta^2.

    Raises ValueError for settings out of range.
    """

    # Weight of the KL to the anchor, in units of reward; for log-probs averaged over a latent's elements.
    beta: Annotated[float, Field(gt=0)] = 3e-6
    # The largest distance of the log-ratio of a decision from that of the old weights.
    clip: Annotated[float, Field(gt=0)] = 1e-4
    # The weights whose log-probs the trained ones are compared with: `old`, `reference`, or `averaged`.
    anchor: Anchor = "reference"
    path: Path = "mean"  # the log-ratios of a path's steps count by their `mean`, or by their `sum`

    has_ties: ClassVar[bool] = True

    @property
    def needs(self) -> frozenset[WeightsName]:
        return super().needs | {"old"}

    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns the log-ratio to the old weights, and that of the old weights to the anchor: [B, K] each."""
        old = forward_outputs.old
        return (forward_outputs.trained.log_ratio(old), old.log_ratio(getattr(forward_outputs, self.anchor)))

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        better, worse = self.pair_rows(batch)
        step, start = compared
        clipped = step.clamp(-self.clip, self.clip)
        paths, near = self.of_samples(step + start, batch), self.of_samples(clipped + start, batch)
        margin, clipped_margin = paths[better] - paths[worse], near[better] - near[worse]
        target = (batch.scores[better] - batch.scores[worse]) / self.beta
        # sign of the difference of the squares: target may be 1e6 times a margin, and squares would agree in float32
        is_larger = (clipped_margin - margin) * (clipped_margin + margin - 2 * target) > 0
        values = (torch.where(is_larger, clipped_margin, margin) - target).square()
        is_there = batch.weight > 0
        share = ((step != clipped) & is_there).to(step.dtype).sum(1) / is_there.sum(1).clamp(min=1)
        return self.of_groups(values, better, batch), {"clip_fraction": share}
