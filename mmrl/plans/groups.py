"""What every plan of a group answers, whatever it draws."""

from collections.abc import Mapping
from typing import Protocol


class GroupPlan(Protocol):
    """What the core asks of any plan. A call is one network evaluation in batch elements; for tokens, of one answer."""

    @property
    def num_samples(self) -> int: ...
    @property
    def num_compared(self) -> int:
        """Samples that are compared with each other, in the smallest of its groups."""
        ...

    @property
    def num_controls(self) -> int:
        """Samples beside these that rewards may compare with, never learned from."""
        ...

    @property
    def has_greedy(self) -> bool:
        """Whether the likeliest sample is drawn beside these, for advantages to compare with, never learned from."""
        ...

    @property
    def num_rollout_calls(self) -> int:
        """Calls that draw the group."""
        ...

    @property
    def num_update_calls(self) -> int:
        """Calls of one pass over the group's decisions; 0 where it has none."""
        ...

    @property
    def forwards_per_call(self) -> int:
        """Network evaluations behind each call: 2 with classifier-free guidance."""
        ...

    @property
    def is_bound(self) -> bool:
        """Whether its counts of calls are upper bounds: episodes may end early."""
        ...

    @property
    def shared_work(self) -> Mapping[str, int]:
        """What sharing saves a rollout of the group, counted in calls: by what is counted, with and without it."""
        ...
