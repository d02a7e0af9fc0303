"""The counts that every plan of a group has, whatever the group is made of."""

from collections.abc import Mapping
from typing import Protocol


class GroupPlan(Protocol):
    """What the core needs to know of a plan.

    A call evaluates the network on one batch element: a state, or an answer.
    """

    @property
    def num_samples(self) -> int:
        """The number of samples of the group."""
        ...

    @property
    def num_compared(self) -> int:
        """Samples that are compared with each other, in the smallest of its groups."""
        ...

    @property
    def num_controls(self) -> int:
        """The number of further samples that rewards may compare with, and that are never learned from."""
        ...

    @property
    def has_greedy(self) -> bool:
        """Whether the likeliest sample is there too, which advantages compare with, and which is never learned from."""
        ...

    @property
    def num_rollout_calls(self) -> int:
        """The number of calls that sample the group."""
        ...

    @property
    def num_update_calls(self) -> int:
        """The number of calls of one pass over the group's decisions; 0 where there are none."""
        ...

    @property
    def forwards_per_call(self) -> int:
        """The number of forward passes of each call: 2 with classifier-free guidance, else 1."""
        ...

    @property
    def is_bound(self) -> bool:
        """Whether the numbers of calls are upper bounds, as for episodes, which may end early."""
        ...

    @property
    def shared_work(self) -> Mapping[str, int]:
        """What sharing saves in a rollout of the group: counts with and without it, by what is counted."""
        ...
