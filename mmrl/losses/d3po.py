"""D3PO: DPO step by step, along the path of a better and of a worse sample."""

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid

from mmrl.core.contracts import LossBatch

from .base.log_ratios import Anchor
from .base.paths import PairLoss, Pairs, Path
from .base.settings import check_above


@dataclass(frozen=True)
class D3po(PairLoss):
    """Mean over steps k of -log sigmoid(beta (c(w_k) - c(l_k))), c the logarithm of the clipped ratio to the reference.

    Yang et al. 2023, "Using Human Feedback to Fine-tune Diffusion Models without Any Reward Model", arXiv 2311.13231,
    with the clip, beta and mean over steps of yk7333/d3po. w_k and l_k are the k-th decisions of the better
    and of the worse sample, which stand at different states; where one has no k-th decision, there is no term. A ratio
    outside of 1 +- clip has no gradient. Steps are micro-batches of their own: memory does not grow with their number.

    With one step whose ratios are inside of the clip it is DPO. Made for denoising, where all paths have the same
    steps; the k-th tokens of two answers have little in common.

    Raises ValueError for settings out of range.
    """

    beta: float = 0.1
    clip: float = 0.1
    pairs: Pairs = "extremes"
    anchor: Anchor = "reference"
    path: Path = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above("beta", self.beta)
        if not 0 < self.clip < 1:
            raise ValueError(f"clip must be in (0, 1), got {self.clip}")

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        better, worse = self.pair_rows(batch)
        # the logarithm of the clipped ratio, without raising to a power of e
        clipped = compared[0].clamp(math.log1p(-self.clip), math.log1p(self.clip))  # [B, K]
        is_there = batch.weight > 0
        in_both = is_there[better] & is_there[worse]  # [N, K]
        values = -logsigmoid(self.beta * (clipped[better] - clipped[worse]))
        is_clipped = ((compared[0] != clipped) & is_there).to(clipped.dtype).sum(1) / is_there.sum(1).clamp(min=1)
        return self.of_groups(self.along(values, in_both), better, batch), {"clip_fraction": is_clipped}
