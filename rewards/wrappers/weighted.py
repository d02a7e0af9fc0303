"""Several rewards as one: their weighted sum."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.dense import DENSE

from ..base.wrapper import RewardWrapper, check_judges_samples, common_granularity, score_inner


@dataclass(frozen=True)
class Weighted(RewardWrapper):
    """The sum over k of weights[k] * rewards[k], for places that take one reward, such as the sampler `guided`.

    Flow-NRG (Liu et al. 2025, arXiv 2501.13918, section 4) weighs its objectives in this way during sampling. The
    rewards of a run are weighed by their own `weight`, which also logs each of them. The sum has a gradient where all
    inner rewards have one, and is NaN where one of them is. Of dense rewards the numbers of each decision are added.

    Raises ValueError unless there are as many weights as rewards, all of which judge samples, or all of which judge
    steps, segments or tokens.
    """

    rewards: tuple[Reward, ...]  # the rewards that are added, at least one
    weights: tuple[float, ...]  # the factor of each

    source: ClassVar[str] = "Liu et al. 2025 (Flow-NRG), arXiv 2501.13918"
    holds_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.weights) != len(self.rewards) or not self.rewards:
            raise ValueError(
                f"weights must be as many as rewards ({len(self.rewards)}), at least one, got {len(self.weights)}"
            )
        for reward in self.rewards:
            if reward.granularity not in DENSE:
                check_judges_samples(reward)
        ends = [sorted(w * end for end in r.range) for r, w in zip(self.rewards, self.weights, strict=True) if w]
        self.override(
            range=(sum(low for low, _ in ends), sum(high for _, high in ends)) if ends else (0.0, 0.0),
            granularity=common_granularity(self.rewards),
            differentiable=all(reward.differentiable for reward in self.rewards),
            needs=self.needs_of_inner(),
        )

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] (dense: [B, K]) float32; raises what the inner rewards raise."""
        parts = [weight * score_inner(reward, batch) for reward, weight in zip(self.rewards, self.weights, strict=True)]
        return torch.stack([part.to(parts[0].device) for part in parts]).sum(0)
