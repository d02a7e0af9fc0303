"""Critics of an agent: rewards that judge its actions before they are done."""

import re
from math import inf

import torch
from torch import Tensor

from mmrl.core.contracts import Reward
from mmrl.core.data import Rollout
from mmrl.scoring.scorer import RewardTerm, Scorer

REFUSED = "The last action was not done: a critic says that it is wrong here. Choose another one."
# what a reward may need that judges an action before it is done
NEEDS = re.compile(r"texts|actions|canvases|is_finished|num_tokens|prompt\.image|model|service|target\.\w+")


def critic_scores(critic: Reward, turns: Rollout) -> Tensor:
    """Returns [B] float32: the critic's score of each turn's answer, NaN where it cannot judge.

    Raises:
        ConfigError: the critic needs a field of the target that a task does not have, or returns a wrong shape.
    """
    scorer = Scorer((RewardTerm("critic", critic),), max_failed_share=1.0)
    return scorer.judge(turns, turns.keys[0].iteration).scores.values[:, 0]


def highest(scores: Tensor, count: int) -> Tensor:
    """Returns [B / count] int64: of each `count` samples in a row the one with the highest score, of equals the first.

    A sample without a score (NaN) comes after all others.
    """
    table = scores.nan_to_num(nan=-inf, posinf=inf, neginf=-inf).view(-1, count)
    return table.argmax(1) + count * torch.arange(len(table))


def refusals(scores: Tensor, threshold: float, turns: Rollout) -> list[bool]:
    """Returns [B]: whether an answer is an action that the critic scores below the threshold."""
    actions = turns.outputs.actions
    assert actions is not None, "an agent's answers are actions"
    return [action is not None and below for action, below in zip(actions, (scores < threshold).tolist(), strict=True)]
