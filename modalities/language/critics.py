"""Critics of an agent: rewards that judge its actions before they are done."""

import re
from collections.abc import Sequence

from mmrl.core.contracts import Reward
from mmrl.core.data import Rollout
from mmrl.scoring.scorer import RewardTerm, Scorer

REFUSED = "The last action was not done: a critic says that it is wrong here. Choose another one."
# what a reward may need that judges an action before it is done
NEEDS = re.compile(r"texts|actions|canvases|is_finished|num_tokens|prompt\.image|model|service|target\.\w+")


def refusals(critic: Reward | None, threshold: float, turns: Rollout) -> Sequence[bool]:
    """Returns [B]: whether the critic scores the action of a turn below the threshold.

    Without a critic, for an answer that is no action, and where the critic cannot judge, it is False.

    Raises:
        ConfigError: the critic needs a field of the target that a task does not have, or returns a wrong shape.
    """
    actions = turns.outputs.actions
    if critic is None or actions is None:
        return [False] * turns.num_samples
    scorer = Scorer((RewardTerm("critic", critic),), max_failed_share=1.0)
    scores = scorer.judge(turns, turns.keys[0].iteration).scores.values[:, 0]  # NaN: it cannot judge
    return [action is not None and below for action, below in zip(actions, (scores < threshold).tolist(), strict=True)]
