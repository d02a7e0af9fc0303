"""Work that is done again in halves where the memory of a device does not suffice."""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from mmrl.system.errors import RunError

Result = TypeVar("Result")
log = logging.getLogger(__name__)


class OutOfMemory(RunError):
    """The memory of a device that does not suffice, on this process or on another."""


@contextmanager
def reported() -> Iterator[None]:
    """Raises OutOfMemory in the place of torch's error, which other processes could not read."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(str(error).partition("\n")[0]) from error


def in_halves(
    size: int, work: Callable[[int], Result], setting: str, largest: Callable[[], int], *, tells: bool = True
) -> tuple[Result, int]:
    """Returns what `work` makes in parts of at most `size`, which is halved until memory suffices; and that size.

    Args:
        work: gives the same result for every size, and may be called again after it ran out of memory.
        setting: where the size stands in a config, for a warning, which is given once.
        largest: the size of the largest part that was tried, called where memory did not suffice.
        tells: whether this process gives the warning.
    Raises:
        OutOfMemory: it does not suffice for parts of 1 either.
    """
    first = size
    while True:
        reason = ""
        try:
            with reported():
                done = work(size)
        except OutOfMemory as error:
            reason = str(error)
        if not reason:
            break
        size = min(size, largest())
        if size <= 1:
            raise OutOfMemory(f"out of memory, with {setting} 1 too: {reason}")
        size //= 2
        gc.collect()  # the tracebacks of the error hold what the failed pass had in memory
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    if size < first and tells:
        log.warning(
            "out of memory with %s %d; the run goes on with %d, with the same result. Set it to that to lose no time",
            *(setting, first, size),
        )
    return done, size


def random_state(device: torch.device) -> list[torch.Tensor]:
    """Returns the state of torch's own random numbers, on the CPU and on the device."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_random_state(state: list[torch.Tensor], device: torch.device) -> None:
    """Sets what `random_state` returned."""
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)
