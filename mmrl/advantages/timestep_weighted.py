"""Advantages weighted by the denoising step of the decision."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Advantage, ConfigError
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import masked_mean

from .base.wrapper import Wrapper
from .grpo import Grpo

_REQUIRED_FACTS = {
    "std": ("std",),
    "step_size": ("sigma", "sigma_next"),
    "jacobian": ("jacobian",),
    "listed": ("step",),
    "discount": (),
}


@dataclass(frozen=True)
class TimestepWeighted(Wrapper):
    """A_k = scale * w_k * A, with A the inner advantage and w_k the weight of the k-th decision.

    The weight is one of
      std: the std of the step's noise, so that steps count as much as they explore, with scale 2.25 (He et al. 2025,
          "TempFlow-GRPO", arXiv 2508.04324, and its code for SD3.5, on whose grid of 10 steps the mean is then about 1;
          1.73 for FLUX and 1.53 for Qwen-Image);
      step_size: sigma - sigma_next;
      jacobian: |d mean / d velocity|, the effect of the network on the step; a policy gradient by itself weighs a step
          by jacobian / std;
      listed: `weights` of step 0, 1 and so on of the grid;
      discount: discount^n with n decisions of the sample behind the decision.
    `scale: null` makes the mean weight of all decisions of valid samples 1. With equal weights and that scale, this is
    the inner advantage.

    Raises ValueError for settings out of range, and ConfigError where `weights` is shorter than the grid.
    """

    inner: Advantage = field(default_factory=Grpo)  # the section of the advantage that is weighted
    # The weight of a step: the `std` of its noise, its `step_size` (sigma - sigma_next), the `jacobian` (the effect of
    # the network on it), a `listed` weight, or a `discount`.
    by: Literal["std", "step_size", "jacobian", "listed", "discount"] = "std"
    # Times every weight; `null`: so that their mean is 1. The authors take 2.25 for SD3.5 (mean 0.999 on its
    # scheduler's grid), 1.73 for FLUX and 1.53 for Qwen-Image.
    scale: Annotated[float, Field(gt=0)] | None = 2.25
    weights: tuple[Annotated[float, Field(ge=0)], ...] = ()  # for `by: listed`: of step 0, 1 and so on of the grid
    # For `by: discount`: to the power of the number of the sample's decisions behind the decision.
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.by == "listed") != bool(self.weights):
            raise ValueError(f"weights are for by 'listed', got {list(self.weights)} with {self.by!r}")
        if self.discount != 1 and self.by != "discount":
            raise ValueError(f"discount is for by 'discount', got {self.discount} with {self.by!r}")

    @property
    def declaration(self) -> AdvantageDeclaration:
        inner = super().declaration
        return replace(inner, requires=inner.requires | set(_REQUIRED_FACTS[self.by]), is_per_decision=True)

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B, K], float32, 0 without a decision; without `paths` the inner advantages."""
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
        """Returns the weights [B, K], float32."""
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
