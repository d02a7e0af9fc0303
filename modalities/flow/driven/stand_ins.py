"""What a paused pipeline finds in the places of its network, its scheduler, its timesteps and its noise levels."""

import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .paused import Channel

NUM_ITERATIONS = 1 << 16  # the length of the timesteps that a pipeline sees: its loop has no end of its own


@dataclass(frozen=True)
class Level:
    """The loop asks for its next timestep; None as the reply ends the loop."""


@dataclass(frozen=True)
class NetworkCall:
    """The pipeline calls a network; the reply is the network's output."""

    network: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the keyword arguments, which tell calls apart; some of them are None."""
        return tuple(sorted(name if value is not None else f"{name}=None" for name, value in self.kwargs.items()))


@dataclass(frozen=True)
class Step:
    """The pipeline takes a step of its scheduler; the reply is the next state."""

    output: Tensor
    sample: Tensor


@dataclass
class Loop:
    """What a paused call and its stand-ins know of the pipeline's loop."""

    channel: Channel = field(default_factory=Channel)
    scheduler: Any = None  # the stand-in
    times: Tensor | None = None  # of the pipeline's own grid
    sigma: float | Tensor | None = None  # of now; None: the pipeline's own grid stands
    following: tuple[float | None, Tensor] | None = None  # level and timestep to go on with, without a pause

    def next_time(self) -> Any:
        """Returns the next timestep; asks for it where none was put down. None ends the loop."""
        if self.following is None:
            return self.channel.ask(Level())
        (self.sigma, time), self.following = self.following, None
        return time

    @property
    def grid(self) -> Tensor | None:
        """Returns the noise levels of the pipeline's own grid, as they are now."""
        if not hasattr(self.scheduler, "sigmas"):
            return None
        levels: Tensor = self.scheduler.sigmas.as_subclass(Tensor)
        return levels


class PartStandIn(torch.nn.Module):
    """A part to the pipeline: everything of the real one that a subclass leaves.

    It is a module: a pipeline whose other parts wait on the CPU finds the device that it computes on by this one.
    """

    def __init__(self, real: Any) -> None:
        super().__init__()
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name == "_real" else getattr(self._real, name)


class NetworkStandIn:
    """A network to the pipeline: everything of the real network but its call."""

    def __init__(self, name: str, real: Any, channel: Channel) -> None:
        self.__dict__.update(_name=name, _real=real, _channel=channel)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._channel.ask(NetworkCall(self._name, args, kwargs))


def scheduler_stand_in(scheduler: Any, loop: Loop) -> Any:
    """Returns a copy of the scheduler whose timesteps and steps are those that the caller decides."""
    kind: Any = type(scheduler)
    times_kind, sigmas_kind = _times_kind(loop), _sigmas_kind(loop)

    @functools.wraps(kind.set_timesteps)  # pipelines read its signature
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> None:
        kind.set_timesteps(self, *args, **kwargs)
        if loop.times is None:
            loop.times = self.timesteps.clone()
        endless = torch.zeros(NUM_ITERATIONS, dtype=self.timesteps.dtype, device=self.timesteps.device)
        self.timesteps = endless.as_subclass(times_kind)
        if hasattr(self, "sigmas"):
            self.sigmas = self.sigmas.as_subclass(sigmas_kind)

    @functools.wraps(kind.step)
    def step(self: Any, model_output: Any, timestep: Any, sample: Any, *args: Any, **kwargs: Any) -> Any:
        following = loop.channel.ask(Step(model_output, sample))
        return _result(following) if kwargs.get("return_dict", True) else (following,)

    made = copy.copy(scheduler)
    # pipelines that copy the scheduler for a second part of the state get a stand-in again
    own = {"set_timesteps": set_timesteps, "step": step, "__deepcopy__": lambda self, memo: copy.copy(self)}
    made.__class__ = type(kind.__name__, (kind,), own)
    return made


def _result(following: Tensor) -> Any:
    from diffusers.schedulers.scheduling_utils import SchedulerOutput

    return SchedulerOutput(prev_sample=following)


def _times_kind(loop: Loop) -> type[Tensor]:
    """Returns the class of the timesteps: the next is whatever the caller says."""

    class Times(Tensor):
        def __iter__(self) -> Iterator[Any]:
            while (time := loop.next_time()) is not None:
                yield time

    return Times


def _sigmas_kind(loop: Loop) -> type[Tensor]:
    """Returns the class of the noise levels: at every index stands the level of now."""

    class Sigmas(Tensor):
        def __getitem__(self, index: Any) -> Any:
            if loop.sigma is None or not isinstance(index, int):
                return super().__getitem__(index).as_subclass(Tensor)
            return torch.as_tensor(loop.sigma, dtype=torch.get_default_dtype(), device=self.device)

    return Sigmas
