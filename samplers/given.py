"""Groups of outputs that the data brings; nothing is sampled."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mmrl.core.keys import GroupKey
from mmrl.plans.offline import OfflinePlan


@dataclass(frozen=True)
class Given:
    """A sampler that takes the `group_size` best outputs, images or answers, that each prompt brings; no network call.

    A group size of 2 takes both outputs of a pair (chosen, rejected), a group size of 1 the chosen output. Of equal
    scores the first counts. The layouts `given_images` and `given_answers` read such data; the reward `given_score`
    gives the score of each output.
    """

    sample_kind: ClassVar[Literal["given"]] = "given"

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> OfflinePlan:
        """Returns the plan of a group, the same for every group: the outputs stand with the prompts."""
        return OfflinePlan(group_size, are_decisions=policy.sample_kind != "latents")
