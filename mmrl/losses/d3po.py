"""D3PO: DPO step by step, along the paths of a better and of a worse sample."""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from mmrl.core.contracts import LossBatch

from .base.log_ratios import Anchor
from .base.paths import PairLoss, Pairs, Path


@dataclass(frozen=True)
class D3po(PairLoss):
    """The mean over steps k of -log sigmoid(beta (c(w_k) - c(l_k))), c the log of the clipped ratio to the reference.

    Yang et al. 2023, "Using Human Feedback to Fine-tune Diffusion Models without Any Reward Model", arXiv 2311.13231,
    with the clip, beta and mean over steps of yk7333/d3po. w_k and l_k are the k-th decisions of the better and of the
    worse sample, made at different states; where a sample has no k-th decision, there is no term. A ratio outside of
    1 +- clip has no gradient. Steps are micro-batches of their own: memory does not grow with their number.

    With one step whose ratios are inside of the clip this is DPO. The loss is made for denoising, where all paths have
    the same steps; the k-th tokens of two answers have little in common.

    Raises ValueError for settings out of range.
    """

    beta: Annotated[float, Field(gt=0)] = 0.1  # times the difference of the log-ratios of a step
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.1  # ratios are clipped to 1 - clip ... 1 + clip
    # Which pairs of a group: `extremes` (the best with the worst), `all`, `adjacent` (each with the next worse).
    pairs: Pairs = "extremes"
    # The weights whose log-probs the trained ones are compared with: `old`, `reference`, or `averaged`.
    anchor: Anchor = "reference"
    path: Path = "mean"  # the terms of a pair's steps count by their `mean`, or by their `sum`

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        better, worse = self.pair_rows(batch)
        # the logarithm of the clipped ratio, without raising to a power of e
        clipped = compared[0].clamp(math.log1p(-self.clip), math.log1p(self.clip))  # [B, K]
        is_there = batch.weight > 0
        in_both = is_there[better] & is_there[worse]  # [N, K]
        values = -logsigmoid(self.beta * (clipped[better] - clipped[worse]))
        is_clipped = ((compared[0] != clipped) & is_there).to(clipped.dtype).sum(1) / is_there.sum(1).clamp(min=1)
        return self.of_groups(self.along(values, in_both), better, batch), {"clip_fraction": is_clipped}
