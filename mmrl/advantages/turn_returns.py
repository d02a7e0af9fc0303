"""Advantages of turns: the rewards-to-go of a turn, compared with those of other turns of its group."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_sum

from .base.episodes import joint, normalised, returns, turn_rewards, whole_episodes


@dataclass(frozen=True)
class TurnReturns(Checked):
    """A_t = (R_t - mean) / (std + epsilon) with R_t = sum over k of discount^k r_(t+k), the rewards-to-go of a turn.

    Rewards-to-go: Williams 1992, Machine Learning 8, 229-256; Sutton and Barto 2018, section 13.4; a discount
    favours short episodes. Mean and unbiased std are those of all turns of the group (`compare: task`), or of its turns
    of the same number (`turn`). Samples of an episode with an invalid turn enter no statistic and get 0; so does a turn
    without another to compare with, and an episode alone in its group.

    Raises ValueError for settings out of range.
    """

    # Of rewards that follow a turn, for each turn in between.
    discount: Annotated[float, Field(ge=0, le=1)] = 0.95
    # Compare with all turns of the episodes of the same `task`, or with their turns of the same number (`turn`).
    compare: Literal["task", "turn"] = "task"
    divides: bool = True  # divide by the standard deviation; `false`: only subtract the mean
    epsilon: Annotated[float, Field(ge=0)] = 1e-6  # added to the standard deviation

    declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(sums_rewards=True)  # of turns

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32."""
        group = scores.group if self.compare == "task" else joint(scores.group, scores.turn)
        values, valid = returns(turn_rewards(scores), scores, self.discount), whole_episodes(scores)
        episodes = group_sum(scores.share_of(valid), scores.group).round()  # [B]
        return normalised(values, group, valid & (episodes > 1), divides=self.divides, epsilon=self.epsilon).float()
