"""One prompt's call of a stock pipeline, kept between the steps of its loop."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .paused import Done, Paused
from .stand_ins import NUM_ITERATIONS, Level, Loop, NetworkCall, NetworkStandIn, Step, scheduler_stand_in

Answer = Callable[[NetworkCall], Any]
_BETWEEN = "its loop does other things between two steps from time to time"


class NotDriven(Exception):
    """A pipeline whose loop cannot be driven; the message says why, as the end of a sentence."""


class PausedCall:
    """A pipeline's `__call__`, which stands still at a step of its scheduler, where a state can be put in.

    Each iteration of the loop is: one level, then network calls, then one step for each part of the state. The
    pipeline's code runs only inside the methods of this class, in a thread of its own with the caller's modes.
    """

    def __init__(self, pipeline: Any, networks: Sequence[str], inputs: Mapping[str, Any], answer: Answer) -> None:
        """Runs the call to the first step of its first iteration.

        Args:
            pipeline: of diffusers, or a shallow copy; its parts and settings are set, so it must be this call's own.
            networks: names of the parts that predict. inputs: arguments of the call.
            answer: answers network calls whose outputs lead nowhere.
        Raises:
            NotDriven: the loop is of another kind.
        """
        self._loop, self._answer = Loop(), answer
        self._num_iterations = 0
        self.parts: list[Tensor] = []  # the first state, as the pipeline makes it
        self._paused = Paused(_body(pipeline, networks, dict(inputs), self._loop), self._loop.channel)
        try:
            with torch.inference_mode(False), torch.no_grad():
                self._prime()
        except BaseException:
            self.close()
            raise

    def _prime(self) -> None:
        self._event = self._paused.resume()
        if isinstance(self._event, NetworkCall):
            raise NotDriven(f"it calls its {self._event.network} before its loop begins")
        if not isinstance(self._event, Level):
            raise NotDriven("its loop takes no timesteps of its scheduler")
        levels, times = self._loop.grid, self._loop.times
        assert times is not None, "the timesteps were set before the loop"
        self.times = times
        # read now: some pipelines change the levels after the timesteps were set
        self.grid = None if levels is None else levels.clone()
        self._first = None if self.grid is None else self.grid[0], times[0]
        self._ask_level(*self._first)
        while isinstance(self._event, Step):
            self.parts.append(self._event.sample.detach().clone())
            self._event = self._paused.resume(self.parts[-1].clone())
        if not self.parts:
            raise NotDriven("its loop takes no step of the scheduler")
        if not isinstance(self._event, Level):
            raise NotDriven("it goes on after one step: several loops or networks in sequence cannot be driven")
        self._to_step()

    @property
    def is_alive(self) -> bool:
        """Returns whether states can be put in."""
        return self._paused.is_alive and self._num_iterations < NUM_ITERATIONS - 8

    @property
    def call(self) -> NetworkCall | None:
        """Returns the network call that waits for its answer."""
        return self._event if isinstance(self._event, NetworkCall) else None

    def begin(self, parts: Sequence[Tensor], sigma: float | None, time: Tensor) -> None:
        """Puts in a state, its parts [n, ...] each, at a noise level, and runs to the first network call."""
        self._num_iterations += 1
        self._put(parts[:-1])
        self._loop.following = sigma, time
        self._put(parts[-1:])
        is_taken, self._loop.following = self._loop.following is None, None
        if not is_taken:
            raise NotDriven(_BETWEEN)
        if not isinstance(self._event, NetworkCall):
            raise NotDriven("an iteration of its loop calls no network")

    def reply(self, output: Any) -> list[Tensor] | None:
        """Answers the waiting network call; returns the outputs for the scheduler, or None before a further call."""
        self._event = self._paused.resume(output)
        if isinstance(self._event, NetworkCall):
            return None
        if not isinstance(self._event, Step):
            raise NotDriven("an iteration of its loop takes no step of the scheduler")
        if len(self.parts) == 1:
            return [self._event.output]
        outputs = []
        while isinstance(self._event, Step):
            outputs.append(self._event.output)
            self._event = self._paused.resume(self._event.sample.detach().clone())
        with torch.no_grad():
            self._to_step()
        return outputs

    def rewind(self) -> None:
        """Leads the call back to a step, after an error in the caller's own code."""
        with torch.no_grad():
            while isinstance(self._event, NetworkCall):
                self._event = self._paused.resume(self._answer(self._event))
            if isinstance(self._event, Level):
                self._to_step()

    def finish(self, parts: Sequence[Tensor]) -> Any:
        """Puts in the last state and returns what the pipeline's call returns. The call cannot be used any more."""
        self._put(parts)
        if not isinstance(self._event, Level):
            raise NotDriven(_BETWEEN)
        event = self._paused.resume(None)
        if not isinstance(event, Done):
            self.close()
            raise NotDriven("a second loop follows its loop: several loops in sequence cannot be driven")
        return event.result

    def close(self) -> None:
        """Ends the call and its thread."""
        self._paused.close()

    def _ask_level(self, sigma: Tensor | None, time: Tensor) -> None:
        """Begins an iteration and answers its network calls."""
        self._loop.sigma = sigma
        self._num_iterations += 1
        self._event = self._paused.resume(time)
        while isinstance(self._event, NetworkCall):
            self._event = self._paused.resume(self._answer(self._event))

    def _to_step(self) -> None:
        self._ask_level(*self._first)
        if not isinstance(self._event, Step):
            raise NotDriven("an iteration of its loop takes no step of the scheduler")

    def _put(self, parts: Sequence[Tensor]) -> None:
        for part in parts:
            if not isinstance(self._event, Step):
                raise NotDriven(_BETWEEN)
            self._event = self._paused.resume(part.clone())  # pipelines write into their latents


def _body(pipeline: Any, networks: Sequence[str], inputs: dict[str, Any], loop: Loop) -> Callable[[], Any]:
    """Returns the pipeline's call, with stand-ins in the places of its networks and its scheduler."""
    # not by setattr, which would register them as parts
    pipeline.__dict__.update({name: NetworkStandIn(name, getattr(pipeline, name), loop.channel) for name in networks})
    loop.scheduler = pipeline.__dict__["scheduler"] = scheduler_stand_in(pipeline.scheduler, loop)
    call: Any = type(pipeline).__call__
    call = getattr(call, "__wrapped__", call)  # without its no_grad
    return lambda: call(pipeline, **inputs)
