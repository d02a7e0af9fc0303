"""Episodes of an agent, turn by turn; each turn is an answer sampled token by token."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mmrl.core.keys import GroupKey
from mmrl.core.numerics import MOST
from mmrl.plans.answers import EpisodePlan

from .base.tokens import TokenSampler


@dataclass(frozen=True, kw_only=True)
class Episodes(TokenSampler):
    """A sampler of episodes, in which the answer of every turn is sampled as by `autoregressive`.

    `max_tokens` is the budget of one turn. A group is `group_size` episodes of one task that begin in the same state.
    """

    sample_kind: ClassVar[Literal["latents", "tokens", "turns"]] = "turns"

    max_turns: Annotated[int, Field(ge=1, le=MOST)]  # after so many turns an episode ends at the latest

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for controls, which episodes do not have."""
        super().__post_init__()
        if self.controls:
            raise ValueError(f"episodes have no controls, got {self.controls}")

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> EpisodePlan:
        """Returns the plan of a group, the same for every group."""
        return EpisodePlan(**vars(super().plan(policy, key, group_size)), max_turns=self.max_turns)
