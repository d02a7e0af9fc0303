"""DRaFT: the gradient of the reward straight through the last steps of sampling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import LossBatch, LossTerms
from mmrl.core.data import Rollout
from mmrl.core.declarations import LossDeclaration
from mmrl.core.keys import GroupKey
from mmrl.core.views import OutputsView

from .base.outputs import OutputsLoss, ends, sampled_rows

NumSteps = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Draft(OutputsLoss, Checked):
    """The term -reward of samples that are rendered again with a gradient through the last `num_steps` steps.

    Clark et al. 2023, "Directly Fine-Tuning Diffusion Models on Differentiable Rewards", arXiv 2309.17400, algorithm 1:
    `num_steps` is its K; as many as the sampler has is full backpropagation. With a range [low, high], both included,
    each prompt index gets a number of its own, uniform, anew for every optimizer step: the randomised truncation of
    AlignProp (Prabhudesai et al. 2023, arXiv 2310.03739), whose K is uniform in 0 to 50 of 50 steps. AlignProp's code
    decides at every step of a chain whether that step's prediction is detached; the paper cuts the chain once, as this
    loss does. Earlier steps are sampled without a graph, so their predictions get no gradient.

    `renoised` > 0, for `num_steps` 1, is DRaFT-LV: so many further noisings of the finished sample to the level of the
    last step, each denoised with a gradient; the paper takes 2. All count alike, and lower the variance.

    The rewards that count must be differentiable. Only a small LoRA and few steps keep the policy near the reference
    (the paper scales the LoRA down after training). Raises ValueError for settings out of range.
    """

    # The last steps that carry a gradient; a range such as [1, 50] samples their number for each prompt (AlignProp).
    num_steps: NumSteps | tuple[NumSteps, NumSteps] = 1
    # With one step: so many further noisings of each sample, denoised with a gradient (DRaFT-LV; the paper takes 2).
    renoised: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        ends("num_steps", self.num_steps)
        if self.renoised and self.num_steps != 1:
            raise ValueError(
                f"renoised must be 0 unless num_steps is 1 (DRaFT-LV), got {self.renoised} with num_steps "
                f"{self.num_steps}"
            )

    @property
    def declaration(self) -> LossDeclaration:
        low, high = ends("num_steps", self.num_steps)
        return LossDeclaration(calls_per_sample=(low + high) / 2 + self.renoised, num_gradient_steps=high)

    def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[OutputsView]:
        """Returns a view for each number of steps, with the samples that have it; then the view of the renoised."""
        span, num_noise_samples = ends("num_steps", self.num_steps), 1 + self.renoised
        views = [
            OutputsView(chosen, number, num_noise_samples=num_noise_samples)
            for number, chosen in sampled_rows(rollout, rows, span, key)
        ]
        if self.renoised and len(rows):
            views.append(self._renoised(rollout, rows, key))
        return views

    def _renoised(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> OutputsView:
        """Returns the view of each sample in `renoised` columns behind the first.

        The seeds depend on the step's key, the prompt index and the sample's place among the samples of the prompt.
        """
        seeds, prompt_indices = [], rollout.prompt_index
        for row in rows.tolist():
            place = int((prompt_indices[:row] == prompt_indices[row]).sum())
            seeds += [key.seed_for("noise", int(prompt_indices[row]), place, column) for column in range(self.renoised)]
        column = torch.arange(1, 1 + self.renoised).repeat(len(rows))
        sample = rows.repeat_interleave(self.renoised)
        return OutputsView(sample, 1, noise_sample=column, num_noise_samples=1 + self.renoised, noise_seed=tuple(seeds))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        (reward,) = measures
        return LossTerms(-reward, {"reward": reward.detach()})
