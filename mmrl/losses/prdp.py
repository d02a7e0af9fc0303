"""PRDP: regression of reward differences on paths, held near the weights that drew them."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch, OutputsByWeights
from mmrl.core.data import WeightsName

from .base.log_ratios import Anchor
from .base.paths import PairLoss, Path
from .base.settings import check_above


@dataclass(frozen=True)
class Prdp(PairLoss):
    """The larger of (m - d / beta)^2 and (m' - d / beta)^2 of each pair, d the difference of its rewards.

    Deng et al. 2024, "PRDP: Proximal Reward Difference Prediction for Large-Scale Reward Finetuning of Diffusion
    Models", arXiv 2402.08714, eqs. 14, 18, 20 and 21; beta and clip of its large runs (table 4). m is the difference of
    the pair's log-ratios to the reference, and m' the same with the log-ratio of every decision kept within +-clip of
    that of the old weights.

    The paper's equations sum log-ratios over steps, its listing (appendix G) averages them, which is the default here:
    table 4 is of that code. `path: sum` with beta / T for T steps is T^2 times the same. The listing leaves pairs of
    equal rewards out, algorithm 1 has them, and so has `pairs: all` here. Here the mean over pairs, as in the listing;
    algorithm 1 divides their sum by B^2. Without a clip it is REBEL against the reference with eta = 1 / beta, divided
    by beta^2.

    Raises ValueError for settings out of range.
    """

    beta: float = 3e-6  # for log-probs averaged over a latent's elements, as is the clip
    clip: float = 1e-4
    anchor: Anchor = "reference"
    path: Path = "mean"

    has_ties: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta", "clip"):
            check_above(name, getattr(self, name))

    @property
    def needs(self) -> frozenset[WeightsName]:
        return super().needs | {"old"}

    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """The log-ratio to the old weights, and that of the old weights to the anchor."""
        old = forward_outputs.old
        return (forward_outputs.trained.log_ratio(old), old.log_ratio(getattr(forward_outputs, self.anchor)))

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        better, worse = self.pair_rows(batch)
        step, start = compared
        kept = step.clamp(-self.clip, self.clip)
        paths, held = self.of_samples(step + start, batch), self.of_samples(kept + start, batch)
        margin, held_margin = paths[better] - paths[worse], held[better] - held[worse]
        target = (batch.scores[better] - batch.scores[worse]) / self.beta
        # sign of the difference of the squares: target may be 1e6 times a margin, and squares would agree in float32
        is_held = (held_margin - margin) * (held_margin + margin - 2 * target) > 0
        values = (torch.where(is_held, held_margin, margin) - target).square()
        is_there = batch.weight > 0
        clipped = ((step != kept) & is_there).to(step.dtype).sum(1) / is_there.sum(1).clamp(min=1)
        return self.of_groups(values, better, batch), {"clip_fraction": clipped}
