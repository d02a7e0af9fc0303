"""Images that the data brings, beside images that the policy draws."""

from dataclasses import dataclass

from mmrl.core.keys import GroupKey
from mmrl.plans.offline import OfflinePlan

from .base.flow import FlowPolicy
from .ode import ODE


@dataclass(frozen=True)
class GivenAndDrawn(ODE):
    """Groups of the `given` best images that each prompt brings and, for the rest, images drawn as by `ode`.

    For losses that set the one against the other, as `spin` does. Raises ValueError where nothing is left to draw.
    """

    given: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.given < 1:
            raise ValueError(f"given must be at least 1, got {self.given}; 'ode' draws all of a group")

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> OfflinePlan:  # type: ignore[override]  # around one
        if group_size <= self.given:
            raise ValueError(f"{self.given} of the group are given, which leaves none of {group_size} to draw")
        return OfflinePlan(self.given, are_decisions=False, online=super().plan(policy, key, group_size - self.given))
