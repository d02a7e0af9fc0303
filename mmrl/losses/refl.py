"""ReFL: the reward of the clean image that one random late step predicts."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.views import OutputsView

from .base.outputs import OutputsLoss, Range, ends, sampled_rows
from .base.settings import check_above


@dataclass(frozen=True)
class Refl(OutputsLoss):
    """scale * relu(margin - reward) of the clean latents predicted at one step, which alone carries a gradient.

    Xu et al. 2023, "ImageReward", arXiv 2304.05977, algorithm 1 (ReFL); constants of THUDM/ImageReward. The step is
    uniform among those with `left_out` steps behind them, a number or a range with both ends; the code draws one of the
    steps 30 to 39 of 40, here (0, 9). Each prompt draw gets a step of its own, anew for every optimizer step. The
    reward of ImageReward has mean 0 and spread 1 over its training images; for other scales set `margin`, the reward
    beyond which nothing is learned (`null`: none), and `scale`. The paper's second term, denoising of pre-training
    images, is not part of its code, nor of this.

    The rewards that count must be differentiable. Raises ValueError for settings out of range.
    """

    left_out: Range = (0, 9)
    margin: float | None = 2.0
    scale: float = 1e-3

    def __post_init__(self) -> None:
        ends("left_out", self.left_out, 0)
        check_above("scale", self.scale)

    @property
    def calls_per_sample(self) -> float:
        """Network calls of one pass over a sample, guidance apart."""
        return 1

    @property
    def looks_back(self) -> int:
        """Steps that samples must have at least."""
        return ends("left_out", self.left_out, 0)[1] + 1

    def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[OutputsView]:
        """The samples with the same step side by side."""
        span = ends("left_out", self.left_out, 0)
        return [OutputsView(chosen, 1, left_out=number) for number, chosen in sampled_rows(rollout, rows, span, key)]

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        (reward,) = measures
        missing = -reward if self.margin is None else (self.margin - reward).relu()
        return LossTerms(self.scale * missing, {"reward": reward.detach()})
