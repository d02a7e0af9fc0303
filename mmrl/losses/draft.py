"""DRaFT: the gradient of the reward straight through the last steps of sampling."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.views import OutputsView

from .base.outputs import OutputsLoss, Range, ends, sampled_rows


@dataclass(frozen=True)
class Draft(OutputsLoss):
    """-reward of the samples, drawn again with a gradient through the last `num_steps` steps.

    Clark et al. 2024, "Directly Fine-Tuning Diffusion Models on Differentiable Rewards", arXiv 2309.17400, algorithm 1:
    `num_steps` is its K; as many as the sampler has is full backpropagation. Where it is a range [low, high], both
    included, each prompt draw gets a number of its own, uniform, anew for every optimizer step: the randomised
    truncation of AlignProp (Prabhudesai et al. 2023, arXiv 2310.03739), whose K is uniform in 0 to 50 of 50 steps. Its
    code draws anew at every step of a chain whether that step's prediction is detached; the paper cuts the chain once,
    and so does this. What lies before is sampled without a graph, so its predictions get no gradient.

    `renoised` > 0, for `num_steps` 1, is DRaFT-LV: so many further noisings of the finished sample to the level of the
    last step, each denoised with a gradient; the paper takes 2. All count alike, and lower the variance.

    The rewards that count must be differentiable; nothing holds the policy near the reference but a small LoRA and few
    steps (the paper scales the LoRA down after training). Raises ValueError for settings out of range.
    """

    num_steps: Range = 1
    renoised: int = 0

    def __post_init__(self) -> None:
        ends("num_steps", self.num_steps, 1)
        if self.renoised < 0 or (self.renoised and self.num_steps != 1):
            raise ValueError(
                f"renoised must be at least 0, and 0 unless num_steps is 1 (DRaFT-LV), got {self.renoised} with "
                f"num_steps {self.num_steps}"
            )

    @property
    def calls_per_sample(self) -> float:
        """Network calls of one pass over a sample, guidance apart; the mean where they are drawn."""
        return sum(ends("num_steps", self.num_steps, 1)) / 2 + self.renoised

    @property
    def looks_back(self) -> int:
        """Steps that samples must have at least."""
        return ends("num_steps", self.num_steps, 1)[1]

    def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[OutputsView]:
        """The samples with the same number of steps side by side; then those noised anew."""
        span, num_noise_samples = ends("num_steps", self.num_steps, 1), 1 + self.renoised
        views = [
            OutputsView(chosen, number, num_noise_samples=num_noise_samples)
            for number, chosen in sampled_rows(rollout, rows, span, key)
        ]
        if self.renoised and len(rows):
            views.append(self._renoised(rollout, rows, key))
        return views

    def _renoised(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> OutputsView:
        """Each sample in `renoised` columns behind the first, by the step's key, the draw and the place in it."""
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
