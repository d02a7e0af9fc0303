"""Answers, and some of them once more, thought over behind a trigger."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from mmrl.core.keys import GroupKey
from mmrl.plans.answers import RethinkingPlan

from .base.tokens import LONGEST, TokenSampler

TRIGGERS = ("\n\nWait, does it seem right?", "\n\nWait, there might be a mistake", "\n\nWait, let's double check")


@dataclass(frozen=True, kw_only=True)
class Rethinking(TokenSampler):
    """A sampler of groups of answers, of which a share goes on behind a trigger: forced rethinking.

    Wang et al. 2025, "VL-Rethinker", arXiv 2504.08837, section 3.3: y = y1, trigger, y2. Here y is a further sample of
    the group, beside y1: it enters no advantage, and the loss `grpo_sft` imitates it where it is right. Which answers
    go on, and behind which trigger, is random; answers that were cut, or that leave less than `room`, do not. The
    triggers are the paper's: self-questioning, self-correction, self-verification. Their code goes on behind 65% of
    the answers, where 1,024 tokens are left, and cuts half of them before the last conclusion, which this does not.
    """

    share: Annotated[float, Field(gt=0, le=1)] = 0.65  # of the answers that go on, rounded, at least one
    triggers: tuple[str, ...] = TRIGGERS  # texts behind which answers go on, one of them by chance
    room: Annotated[int, Field(ge=1, le=LONGEST)] = 1024  # tokens of `max_tokens` that must be left behind a trigger

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for settings that exclude each other."""
        super().__post_init__()
        if not self.triggers or "" in self.triggers:
            raise ValueError(f"triggers must be texts, got {list(self.triggers)}")
        if self.room >= self.max_tokens:
            raise ValueError(f"room must be below max_tokens {self.max_tokens}, got {self.room}: no answer could go on")
        if self.temperature == 0 or self.top_p < 1 or self.top_k is not None or self.min_p > 0:
            raise ValueError(
                "a trigger is nothing that was sampled: temperature must be above 0, and top_p, top_k and min_p left "
                "out, or its tokens may have no log-prob"
            )
        if self.stop or self.controls or self.greedy:
            raise ValueError("answers that are thought over have no stop, no controls and no greedy answer beside them")

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> RethinkingPlan:
        """Returns the plan of a group, the same for every group: random choices come from its key."""
        return RethinkingPlan(
            **vars(super().plan(policy, key, group_size)),
            num_rethought=max(1, round(self.share * group_size)),
            triggers=self.triggers,
            room=self.room,
        )
