"""The environment's own reward of each turn."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch


@dataclass(frozen=True)
class StepReward(Checked):
    """The environment's own reward of each turn, unbounded as its rewards are; 0 for an answer that was no action.

    With advantages that add up the rewards after a turn (`turn_returns`, `gigpo`) these are the rewards of the decision
    process; with `grpo` every turn is compared by its own reward alone. A turn in which the environment broke tells
    nothing about the agent: it cannot be judged, and its episode leaves the group (`failed: mask`), unless the agent is
    to answer for it (`failed: zero`).

    Raises ValueError for a turn in which the environment broke, with `failed: mask`.
    """

    # a turn in which the environment broke takes its episode out of the group, or scores 0
    failed: Literal["mask", "zero"] = "mask"

    source: ClassVar[str] = "the environment (Sutton and Barto 2018, Reinforcement Learning, section 3.2)"
    range: ClassVar[tuple[float, float]] = (float("-inf"), float("inf"))
    granularity: ClassVar[Granularity] = "turn"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"step_rewards", "outcomes"})
    batch_size: ClassVar[int | None] = None

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32."""
        rewards, outcomes = batch.outputs.step_rewards, batch.outputs.outcomes
        assert rewards is not None and outcomes is not None, "checked by `needs`"
        if self.failed == "mask" and "failed" in outcomes:
            raise ValueError("the environment broke in this turn")
        return rewards.float()
