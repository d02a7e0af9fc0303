"""ReFL: the reward of the clean image that a random late step predicts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import LossBatch, LossTerms
from mmrl.core.data import Rollout
from mmrl.core.declarations import LossDeclaration
from mmrl.core.keys import GroupKey
from mmrl.core.views import OutputsView

from .base.outputs import OutputsLoss, ends, sampled_rows

NumSteps = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Refl(OutputsLoss, Checked):
    """The term scale * relu(margin - reward) of the clean latents predicted at one step, the only one with a gradient.

    Xu et al. 2023, "ImageReward", arXiv 2304.05977, algorithm 1 (ReFL); constants of THUDM/ImageReward. The step is
    uniform among those with `left_out` steps behind them, a number or a range with both ends; the code samples one of
    the steps 30 to 39 of 40, here (0, 9). Each prompt index gets a step of its own, anew for every optimizer step. The
    reward of ImageReward has mean 0 and spread 1 over its training images; for other scales set `margin` and `scale`.
    The paper's second term, denoising of pre-training images, is not part of its code, nor of this loss.

    The rewards that count must be differentiable. Raises ValueError for settings out of range.
    """

    # How many steps lie behind the step with the gradient: a number, or a range to sample from, both ends included.
    left_out: NumSteps | tuple[NumSteps, NumSteps] = (0, 9)
    margin: float | None = 2.0  # rewards beyond the margin teach nothing, in units of the reward; `null`: no margin
    scale: Annotated[float, Field(gt=0)] = 1e-3  # times the distance of the reward from the margin

    def __post_init__(self) -> None:
        super().__post_init__()
        ends("left_out", self.left_out)

    @property
    def declaration(self) -> LossDeclaration:
        return LossDeclaration(num_gradient_steps=ends("left_out", self.left_out)[1] + 1)

    def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[OutputsView]:
        """Returns a view for each step that was sampled, with the samples that have it."""
        span = ends("left_out", self.left_out)
        return [OutputsView(chosen, 1, left_out=number) for number, chosen in sampled_rows(rollout, rows, span, key)]

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        (reward,) = measures
        missing = -reward if self.margin is None else (self.margin - reward).relu()
        return LossTerms(self.scale * missing, {"reward": reward.detach()})
