"""Group-in-group advantages: a comparison of whole episodes, and a comparison of actions in the same state.

Maths: docs/maths/agents.md#group-in-group
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_sum

from .base.episodes import joint, normalised, returns, turn_rewards, whole_episodes


@dataclass(frozen=True)
class Gigpo(Checked):
    """A = A_episode + step_weight * A_step.

    Feng et al. 2025, "Group-in-Group Policy Optimization for LLM Agent Training", arXiv 2505.10978, equations 3, 6-8.
    A_episode normalises the sum of an episode's rewards within its group (one task); A_step normalises the discounted
    return R_t = sum over k of discount^k r_(t+k) among the turns of the group that began in the same anchor state. A
    turn whose state no other turn of the group has gets no step term: without repeated states this is GRPO on episodes.

    The mean and std of A_episode run over `turns`, so that long episodes count more, as in the code of
    langfengQ/verl-agent, or over `episodes`, each once (equation 3). With `divides` the divisor is the unbiased std
    (F_norm = std in the paper), else 1 (F_norm = 1). Samples of an episode with an invalid turn enter no statistic and
    get 0.

    Raises ValueError for settings out of range.
    """

    # Of rewards that follow a turn, for each turn in between.
    discount: Annotated[float, Field(ge=0, le=1)] = 0.95
    # Weight of the comparison in the same state; without repeated states only the comparison of episodes counts.
    step_weight: Annotated[float, Field(ge=0)] = 1.0
    # Mean and std of whole episodes run over `turns`, so that long episodes count more (the authors' code), or over
    # `episodes`, each once (the paper's equation 3).
    counts: Literal["turns", "episodes"] = "turns"
    divides: bool = True  # divide by the standard deviation; `false`: only subtract the mean
    epsilon: Annotated[float, Field(ge=0)] = 1e-6  # added to the standard deviation

    declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(sums_rewards=True)  # of turns

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32."""
        rewards, valid = turn_rewards(scores), whole_episodes(scores)
        per_turn = returns(rewards, scores, self.discount)
        known = valid & (scores.anchor >= 0)
        step = normalised(
            per_turn, joint(scores.group, scores.anchor), known, divides=self.divides, epsilon=self.epsilon
        )
        return (self._episode(rewards, scores, valid) + self.step_weight * step).float()

    def _episode(self, rewards: Tensor, scores: Scores, valid: Tensor) -> Tensor:
        """Returns A_episode [B], float64, the same for all turns of an episode."""
        total = group_sum(torch.where(valid, rewards, 0.0), scores.episode)
        if self.counts == "turns":
            return normalised(total, scores.group, valid, divides=self.divides, epsilon=self.epsilon)
        is_first = scores.turn == 0  # each episode counts by its first turn
        alone = normalised(total, scores.group, valid & is_first, divides=self.divides, epsilon=self.epsilon)
        return torch.where(valid, group_sum(alone, scores.episode), 0.0)
