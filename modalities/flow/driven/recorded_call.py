"""A paused call whose network calls are seen, and answered with outputs of the caller's choice."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mmrl.core.keys import normal

from .driver import Driver, Key
from .paused_call import PausedCall
from .stand_ins import NetworkCall

_SEED = 23


class NotReplayed(Exception):
    """A pipeline whose network arguments cannot be used again; the message says why, as the end of a sentence."""


class RecordedCall:
    """A paused call whose network calls are seen, and answered with outputs of the caller's choice."""

    def __init__(self, driver: Driver, key: Key) -> None:
        self._driver, self._call = driver, driver.make(key)
        self._blank = driver.learned[key.scale is not None].blank
        self.time_of = driver.time_of
        self.device = driver.time_of(1.0).device

    def state(self, number: int) -> Tensor:
        """Returns a random state [1, ...]."""
        return normal(_SEED + number, (1, *self._driver.latent_shape)).to(self.device)

    def __call__(
        self, state: Tensor, sigma: float, outputs: Sequence[Any] | None = None
    ) -> tuple[list[NetworkCall], Tensor]:
        """Returns the calls of an iteration, and its output for the scheduler."""
        call: PausedCall = self._call
        call.begin(self._driver.split(state), sigma, self.time_of(sigma))
        calls: list[NetworkCall] = []
        while call.call is not None:
            calls.append(call.call)
            number = len(calls) - 1
            if outputs is not None and number >= len(outputs):
                raise NotReplayed("the number of its network calls changes")
            found = call.reply(self._blank(call.call) if outputs is None else outputs[number])
        assert found is not None, "no network call waits"
        return calls, self._driver.joined(found)

    def close(self) -> None:
        """Ends the paused call."""
        self._call.close()
