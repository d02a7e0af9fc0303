"""What the environment gave an agent for the action of a turn."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mmrl.contracts import Granularity, RewardBatch


@dataclass(frozen=True)
class StepReward:
    """The environment's own reward of each turn; 0 for an answer that was no action, and where the environment broke.

    With advantages that add up what follows a turn (`turn_returns`, `gigpo`) these are the rewards of the decision
    process; with `grpo` every turn is compared by its own reward alone.
    """

    source: ClassVar[str] = "the environment (Sutton and Barto 2018, Reinforcement Learning, section 3.2)"
    range: ClassVar[tuple[float, float]] = (float("-inf"), float("inf"))
    granularity: ClassVar[Granularity] = "turn"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"step_rewards"})
    batch_size: ClassVar[int | None] = None

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32."""
        assert batch.outputs.step_rewards is not None, "checked by `needs`"
        return batch.outputs.step_rewards.float()
