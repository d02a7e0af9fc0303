"""Nothing is drawn: the data brings the outputs."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mmrl.core.keys import GroupKey
from mmrl.plans.offline import OfflinePlan


@dataclass(frozen=True)
class Given:
    """The `group_size` best outputs that each prompt brings, images or answers, as one group; no network call.

    A pair (chosen, rejected) with a group size of 2, or its chosen one alone with 1. Of equal scores the first counts.
    The layouts `given_images` and `given_answers` read such data; the reward `given_score` says what each is worth.
    """

    sample_kind: ClassVar[Literal["given"]] = "given"

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> OfflinePlan:
        """The same for every group: the outputs stand with the prompts."""
        return OfflinePlan(group_size, are_decisions=policy.sample_kind != "latents")
