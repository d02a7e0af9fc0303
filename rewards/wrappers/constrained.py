"""A reward that counts only where several other rewards, the constraints, hold."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch

from ..base.wrapper import RewardWrapper, check_judges_samples, for_each_number, only_numbers, score_inner


@dataclass(frozen=True)
class Constrained(RewardWrapper):
    """A reward under constraints: r where every one of `constraints` is at least `threshold`, else what `broken` says.

    Xu et al. 2024, "The Perfect Blend: Redefining RLHF with Mixture of Judges" (CGPO), arXiv 2409.20370: each task has
    a reward of its own and judges of its own (rules, or models that are asked), and a sample counts as good only where
    all of them hold. With `router` around it each task has its own constraints. What breaks a constraint scores
      broken: set   `limit`
      broken: cap   min(r, `limit`), so that bad samples stay in order

    The paper splits a group into samples that hold with a reward above a baseline, and the rest; here one number says
    both, and any loss can learn from it. A constraint that cannot be judged (NaN) leaves the sample out. Of a dense
    reward each number of a bad sample is set or capped.

    Raises ValueError without constraints, and for constraints that judge something else than samples.
    """

    reward: Reward  # what counts where all constraints hold
    constraints: tuple[Reward, ...]  # rewards that judge samples, such as a rule of the format, or a judge
    threshold: float = 0.5  # score of a constraint from which it holds
    broken: Literal["set", "cap"] = "set"  # what becomes of a sample that breaks one
    limit: float = 0.0  # its score, or the most that it can score

    source: ClassVar[str] = "Xu et al. 2024 (CGPO), arXiv 2409.20370"
    holds_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.constraints:
            raise ValueError("constraints must hold at least one reward, got none")
        for number, constraint in enumerate(self.constraints):
            check_judges_samples(constraint, f"constraint {number}")
        low, high = self.reward.range
        ends = (min(low, self.limit), high if self.broken == "cap" else max(high, self.limit))
        self.inherit(self.reward, range=ends)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] (dense: [B, K]) float32; raises what the inner rewards raise."""
        reward = score_inner(self.reward, batch)
        limit = reward.clamp(max=self.limit) if self.broken == "cap" else torch.full_like(reward, self.limit)
        lowest = torch.stack([score_inner(one, batch).detach().to(reward.device) for one in self.constraints])  # [C, B]
        lowest = for_each_number(lowest.min(0).values, reward)  # NaN where one of them is
        scores = torch.where(lowest >= self.threshold, reward, limit)
        scores = torch.where(lowest.isnan(), torch.full_like(scores, torch.nan), scores)
        return only_numbers(self.reward, batch, scores)
