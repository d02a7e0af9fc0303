"""Advantages weighted by the denoising step of the decision."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmrl.advantages._inner import Wrapper
from mmrl.contracts import ConfigError
from mmrl.data import Paths, Scores
from mmrl.numerics import masked_mean

_READS = {
    "std": ("std",),
    "step_size": ("sigma", "sigma_next"),
    "jacobian": ("jacobian",),
    "listed": ("step",),
    "discount": (),
}


@dataclass(frozen=True)
class TimestepWeighted(Wrapper):
    """A_k = scale * w_k * A, with A the inner advantage and w_k the weight of the k-th decision.

    `by` says which weight. `std`: of the step's noise, so that steps count as much as they explore; with scale 2.25 (He
    et al. 2025, "TempFlow-GRPO", arXiv 2508.04324, and its code for SD3.5, on whose grid of 10 steps the mean is then
    about 1; it has 1.73 for FLUX and 1.53 for Qwen-Image). `step_size`: sigma - sigma_next. `jacobian`: |d mean / d
    velocity|, how far the step follows the network; a policy gradient weighs a step by jacobian / std by itself.
    `listed`: `weights` of step 0, 1 and so on of the grid. `discount`: discount^n with n decisions of the sample behind
    it. `scale: null` makes the mean weight of all decisions of valid samples 1. With equal weights and that scale, this
    is the inner advantage.

    Raises ValueError for settings out of range, and ConfigError where `weights` is shorter than the grid.
    """

    by: Literal["std", "step_size", "jacobian", "listed", "discount"] = "std"
    scale: float | None = 2.25
    weights: tuple[float, ...] = ()
    discount: float = 1.0

    def __post_init__(self) -> None:
        if self.scale is not None and self.scale <= 0:
            raise ValueError(f"scale must be above 0, or null for a mean of 1, got {self.scale}")
        if (self.by == "listed") != bool(self.weights) or any(weight < 0 for weight in self.weights):
            raise ValueError(f"weights are for by 'listed', at least 0 each, got {list(self.weights)} with {self.by!r}")
        if not 0 < self.discount <= 1 or (self.discount != 1 and self.by != "discount"):
            raise ValueError(
                f"discount is for by 'discount', above 0 and at most 1, got {self.discount} with {self.by!r}"
            )

    @property
    def of_decisions(self) -> bool:
        return True

    @property
    def reads(self) -> frozenset[str]:
        return super().reads | set(_READS[self.by])

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """[B, K] float32, 0 where there is no decision; without `paths` the inner advantages."""
        inner = self.inner(scores, paths)
        if paths is None:
            return inner
        is_there = paths.edge >= 0
        plain = (inner if inner.dim() == 2 else inner[:, None]).expand(paths.edge.shape)
        weight = self._weight(paths, is_there) if is_there.any() else torch.zeros_like(plain)
        counted = (is_there & scores.valid[:, None]).float()
        scale = self.scale if self.scale is not None else 1 / masked_mean(weight, counted).clamp(min=1e-12)
        return torch.where(is_there, scale * weight * plain, 0.0)

    def _weight(self, paths: Paths, is_there: Tensor) -> Tensor:
        """[B, K] float32."""
        if self.by == "step_size":
            return paths.facts["sigma"] - paths.facts["sigma_next"]
        if self.by == "discount":
            behind = is_there.flip(1).cumsum(1).flip(1) - 1
            return torch.tensor(self.discount).pow(behind.clamp(min=0))
        if self.by == "listed":
            step = paths.facts["step"].long()
            if int(step.max()) >= len(self.weights):
                raise ConfigError(
                    f"advantage 'timestep_weighted': weights has {len(self.weights)} numbers, but step "
                    f"{int(step.max())} is trained; it needs one for each step of the grid"
                )
            return torch.tensor(self.weights)[step]
        return paths.facts[self.by]
