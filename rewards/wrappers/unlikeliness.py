"""Less reward for the samples of a group that the policy finds most likely."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch

from ..base.wrapper import RewardWrapper, check_judges_samples, score_inner


@dataclass(frozen=True)
class Unlikeliness(RewardWrapper):
    """r_i (1 - scale (G - rank_i) / G): rare right answers count more than those that the policy gives anyway.

    He et al. 2025, "Rewarding the Unlikely", arXiv 2506.02355, section 4.2. r_i is the inner `reward`, which must
    be at least 0; rank_i counts the members of the group of G that are more likely: 0 for the likeliest, which
    loses most, and G - 1 for the rarest. Likelihoods are sums of log-probs over an answer, by the weights that
    sampled it, which the rollout has recorded. Members of equal likelihood get the mean of their ranks. Controls
    are no members: their score is r_i.
    """

    reward: Reward  # such as {name: exact_answer}

    source: ClassVar[str] = "He et al. 2025, arXiv 2506.02355"
    granularity: ClassVar[Granularity] = "group"
    needs: ClassVar[frozenset[str]] = frozenset({"likelihoods.sampled"})  # beside those of the inner reward

    scale: Annotated[float, Field(ge=0, le=1)] = 0.25  # what the likeliest member loses, the paper's beta_rank

    def __post_init__(self) -> None:
        super().__post_init__()
        check_judges_samples(self.reward)
        if self.reward.range[0] < 0:
            raise ValueError(f"the inner reward must be at least 0, got {self.reward.range}")
        self.override(range=(0.0, self.reward.range[1]), needs=type(self).needs | self.needs_of_inner())

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises what the inner reward raises."""
        scores = score_inner(self.reward, batch).float()
        likelihood = batch.likelihoods["sampled"].log_prob.double().sum(1).to(scores.device)
        factor = torch.ones_like(scores)
        for rows in batch.members():
            own = likelihood[rows]
            more, equal = (own[None] > own[:, None]).sum(1), (own[None] == own[:, None]).sum(1)
            rank = more + (equal - 1) / 2  # the mean of the ranks that equal ones share
            factor[rows] = (1 - self.scale * (len(rows) - rank) / max(1, len(rows))).float()
        return scores * factor
