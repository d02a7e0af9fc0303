"""Critics of an agent: rewards that judge its actions before they are done."""

import re
from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from mmrl.core.contracts import Explaining, Reward
from mmrl.core.data import Rollout
from mmrl.core.reward_batches import reward_batch, select
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


def refused_texts(
    critic: Reward, is_refused: Sequence[bool], turns: Rollout, *, with_words: bool
) -> tuple[str | None, ...]:
    """Returns [B]: what an agent reads in the turn after a refused action; None where the action is done.

    Args:
        is_refused: [B] whether the critic refuses each action. turns: the answers that it judged.
        with_words: whether the critic's own words stand behind the refusal; then the critic is `Explaining`.
    """
    rows = [row for row, refused in enumerate(is_refused) if refused]
    words = [""] * len(rows)
    if with_words and rows:
        assert isinstance(critic, Explaining), "the settings of the agent were checked"
        words = list(critic.reasons(select(reward_batch(turns, turns.keys[0].iteration), torch.tensor(rows))))
    texts: list[str | None] = [None] * len(is_refused)
    for row, said in zip(rows, words, strict=True):
        texts[row] = f"{REFUSED}\nThe critic: {said}" if said else REFUSED
    return tuple(texts)
