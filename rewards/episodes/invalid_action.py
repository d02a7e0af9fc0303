"""A penalty for turns whose answer is no action."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch


@dataclass(frozen=True)
class InvalidAction(Checked):
    """A penalty: -1 for each turn whose answer names no action of the dialect, else 0.

    verl-agent takes 0.1 off the reward of such a turn (`use_invalid_action_penalty`, with Feng et al. 2025, arXiv
    2505.10978): this reward with a weight of 0.1. With advantages that add up the rewards after a turn (`gigpo`,
    `turn_returns`) the turns before it bear it too. An action that the environment refuses is an action.
    """

    source: ClassVar[str] = "Feng et al. 2025 (GiGPO), arXiv 2505.10978, as in verl-agent"
    range: ClassVar[tuple[float, float]] = (-1.0, 0.0)
    granularity: ClassVar[Granularity] = "turn"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"actions"})
    batch_size: ClassVar[int | None] = None

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32 in {-1, 0}."""
        actions = batch.outputs.actions
        assert actions is not None, "checked by `needs`"
        return torch.tensor([-1.0 if action is None else 0.0 for action in actions])
