"""Groups of images that the data brings and of images that the policy samples."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mmrl.core.keys import GroupKey
from mmrl.plans.offline import OfflinePlan

from .base.flow import FlowPolicy
from .ode import ODE


@dataclass(frozen=True)
class GivenAndDrawn(ODE):
    """A sampler that takes the `given` best images of each prompt and samples the rest of the group as `ode` does.

    For losses that compare images of the data with images of the policy, as `spin` does.
    """

    given: Annotated[int, Field(ge=1)] = 1  # images of a group that the data brings; the rest is sampled

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> OfflinePlan:  # type: ignore[override]  # around one
        """Returns the plan of a group. Raises ValueError where no image is left to sample."""
        if group_size <= self.given:
            raise ValueError(
                f"given must be below group_size, got {self.given} of {group_size}: none is left to sample"
            )
        return OfflinePlan(self.given, are_decisions=False, online=super().plan(policy, key, group_size - self.given))
