"""Episodes of an agent, turn by turn, each turn an answer drawn token by token."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mmrl.core.keys import GroupKey
from mmrl.core.numerics import check_count
from mmrl.plans.answers import EpisodePlan

from .base.tokens import TokenSampler


@dataclass(frozen=True, kw_only=True)
class Episodes(TokenSampler):
    """Every turn's answer as `autoregressive` draws it; an episode ends after `max_turns` turns at the latest.

    `max_tokens` is the budget of one turn. A group is `group_size` episodes of one task that begin in the same state.
    """

    sample_kind: ClassVar[Literal["latents", "tokens", "turns"]] = "turns"

    max_turns: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("max_turns", self.max_turns)
        if self.controls:
            raise ValueError(f"episodes have no controls, got {self.controls}")

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> EpisodePlan:
        """The same for every group."""
        return EpisodePlan(**vars(super().plan(policy, key, group_size)), max_turns=self.max_turns)
