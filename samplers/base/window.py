"""The window of random steps of a sampler: one for each group, from the group's key alone.

Maths: docs/maths/sde-sampling.md#which-steps-are-random
"""

import math
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import Field

from mmrl.core.checked import Checked
from mmrl.core.keys import GroupKey, seed_from

_REQUIRES = {
    "all": (),
    "range": ("first", "last"),
    "random": ("first", "last", "size"),
    "subset": ("first", "last", "size"),
    "sliding": (
        "first",
        "last",
        "size",
        "stride",
        "every",
        "schedule",
        "roll_back",
        "min_every",
        "decay_rate",
        "decay_start",
    ),
}


@dataclass(frozen=True)
class Window(Checked):
    """The random steps of a group, at least one; the other steps are ODE steps.

    The last step is never random on a grid that ends at sigma 0; on one that ends above, `last` may be num_steps.

    `all`: every step but the last. `range`: the steps [first, last).
    `random`: `size` consecutive steps inside [first, last), placed anew for each group (Flow-GRPO-Fast).
    `subset`: any `size` steps of [first, last), chosen anew for each group.
    `sliding`: `size` consecutive steps, the same in all groups, that move with the iteration (MixGRPO, Li et al. 2025,
    arXiv 2507.21802). They start at `first` and move by `stride` until they end at `last`; then they start again
    (`roll_back`) or stay. The place is a function of the iteration, so a resumed run needs no state to find it.

    `schedule` says how many iterations the sliding window stays at a place l. `progressive`: `every`.
    `decay`: falling linearly from `every` towards `min_every` with (l - first) / (last - first), rounded down.
    `exp_decay`: every * exp(-decay_rate * max(0, l - decay_start)), rounded up.
    `random`: `every`, at places chosen by the run's seed.
    """

    # `all` steps but the last; `range`: first to last; `random`: `size` consecutive steps placed anew for each group;
    # `subset`: any `size`, anew for each group; `sliding`: `size` consecutive steps that move with the iteration.
    mode: Literal["all", "range", "random", "subset", "sliding"] = "all"
    first: int = 0  # the first step that may be random
    # The step before which the window ends; null: before the last step, which is random only if `last` says so, on
    # grids that end above 0.
    last: int | None = None
    size: Annotated[int, Field(ge=1)] | None = None  # how many steps are random, for `random`, `subset` and `sliding`
    stride: Annotated[int, Field(ge=1)] = 1  # `sliding`: by how many steps the window moves
    every: Annotated[int, Field(ge=1)] = 25  # `sliding`: iterations at a place; the default is of MixGRPO's FLUX script
    # `sliding`: `progressive` stays `every` iterations at each place; `decay` and `exp_decay` ever fewer; `random` goes
    # to random places.
    schedule: Literal["progressive", "random", "decay", "exp_decay"] = "progressive"
    roll_back: bool = True  # `sliding`: starts again at the end; else it stays there
    min_every: Annotated[int, Field(ge=1)] = 1  # `decay`: the fewest iterations at a place
    # `exp_decay`: iterations at place l are every * exp(-decay_rate * max(0, l - decay_start)).
    decay_rate: Annotated[float, Field(ge=0)] = 0.1
    decay_start: int = 13  # `exp_decay`: the place behind which iterations become fewer

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for settings that the mode does not use."""
        super().__post_init__()
        read = _REQUIRES[self.mode]
        for setting in fields(self):
            if setting.name != "mode" and setting.name not in read and vars(self)[setting.name] != setting.default:
                allowed = ", ".join(read) or "nothing else"
                raise ValueError(f"window mode {self.mode!r} does not use {setting.name!r}; it uses {allowed}")
        if "size" in read and self.size is None:
            raise ValueError(f"window mode {self.mode!r} needs a size: how many steps are random")
        if self.min_every > self.every:
            raise ValueError(f"window min_every must be at most every ({self.every}), got {self.min_every}")

    def bounds(self, num_steps: int) -> tuple[int, int]:
        """Returns the steps [first, last) of `num_steps` that may be random. Raises ValueError where there are none."""
        last = num_steps - 1 if self.last is None else self.last
        if not 0 <= self.first < last <= num_steps:
            raise ValueError(
                f"the window needs 0 <= first < last <= {num_steps - 1} with {num_steps} steps (the last step is never "
                f"random, but on grids that end above sigma 0), got first {self.first}, last {last}"
            )
        if self.size is not None and self.size > last - self.first:
            raise ValueError(f"a window of size {self.size} does not fit in the steps [{self.first}, {last})")
        return self.first, last

    def steps(self, num_steps: int, key: GroupKey) -> tuple[int, ...]:
        """Returns the indices of the random steps of the group `key`, ascending."""
        first, last = self.bounds(num_steps)
        size = self.size or last - first
        start = first
        if self.mode == "subset":
            return sample_subset(range(first, last), size, key, "window")
        if self.mode == "random":
            start += key.seed_for("window") % (last - first - size + 1)
        elif self.mode == "sliding":
            start = self._place(first, last, size, key)
        return tuple(range(start, start + size))

    def _place(self, first: int, last: int, size: int, key: GroupKey) -> int:
        """Returns the step at which the sliding window starts in the key's iteration."""
        places: list[int] = [*range(first, last - size, self.stride), last - size]
        if self.schedule == "random":
            return places[seed_from(key.seed, "window", key.iteration // self.every) % len(places)]
        ends = list(accumulate(self._stay(place, first, last) for place in places))
        iteration = key.iteration % ends[-1] if self.roll_back else min(key.iteration, ends[-1] - 1)
        return next(place for place, end in zip(places, ends, strict=True) if iteration < end)

    def _stay(self, place: int, first: int, last: int) -> int:
        """Returns how many iterations the window stays at a place, at least 1."""
        if self.schedule == "decay":
            return self.every + (self.min_every - self.every) * (place - first) // (last - first)
        if self.schedule == "exp_decay":
            return max(1, math.ceil(self.every * math.exp(-self.decay_rate * max(0, place - self.decay_start))))
        return self.every


def sample_subset(steps: range | tuple[int, ...], size: int, key: GroupKey, purpose: str) -> tuple[int, ...]:
    """Returns `size` of the steps, ascending, every subset equally likely: the steps with the smallest seeds."""
    return tuple(sorted(sorted(steps, key=lambda step: key.seed_for(purpose, step))[:size]))
