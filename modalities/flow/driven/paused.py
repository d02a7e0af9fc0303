"""A function that runs only while its caller waits for it: a greenlet, in the caller's thread."""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import greenlet
import torch


@dataclass(frozen=True)
class Modes:
    """The modes of torch that each thread has for itself, but for inference mode, which only a context can set."""

    is_grad_enabled: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]  # by type of device
    is_autocast_cached: bool
    default_dtype: torch.dtype
    cuda: tuple[int, Any] | None  # the current device and its stream; None where CUDA is not in use

    @classmethod
    def current(cls) -> Self:
        """Returns the modes of the calling thread."""
        is_cuda = torch.cuda.is_initialized()
        kinds = ("cpu", "cuda") if is_cuda else ("cpu",)
        return cls(
            torch.is_grad_enabled(),
            tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds),
            torch.is_autocast_cache_enabled(),
            torch.get_default_dtype(),
            (torch.cuda.current_device(), torch.cuda.current_stream()) if is_cuda else None,
        )

    def set(self) -> None:
        """Sets the modes in the calling thread."""
        torch.set_grad_enabled(self.is_grad_enabled)
        for kind, is_on, dtype in self.autocast:
            torch.set_autocast_enabled(kind, is_on)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self.is_autocast_cached)
        if torch.get_default_dtype() != self.default_dtype:
            torch.set_default_dtype(self.default_dtype)
        if self.cuda is not None:
            torch.cuda.set_device(self.cuda[0])
            torch.cuda.set_stream(self.cuda[1])


def ask(event: Any) -> Any:
    """Hands an event out of the paused function that runs, and returns the caller's reply."""
    caller = greenlet.getcurrent().parent
    assert caller is not None, "called inside of a paused function"
    return caller.switch(event)


@dataclass(frozen=True)
class Done:
    """The function returned."""

    result: Any


class Paused:
    """The caller's side of a paused function, which ends where it stands when this object is collected."""

    def __init__(self, function: "Callable[[], Any]") -> None:
        """Runs nothing yet. `function` must hold no reference to this object, or it is never collected."""
        self._greenlet = greenlet.greenlet(lambda _: function())
        self._thread = threading.get_ident()
        self._finalizer = weakref.finalize(self, _end, self._greenlet, self._thread)

    @property
    def is_alive(self) -> bool:
        """Returns whether the function can still be resumed; it can in the thread that it was made in."""
        return not self._greenlet.dead and self._thread == threading.get_ident()

    def resume(self, reply: Any = None) -> Any:
        """Hands a reply over and returns the next event; `Done` is the last.

        The function runs with the caller's modes, which it leaves as they are. Raises what the function raises, and
        RuntimeError where it has ended.
        """
        if not self.is_alive:
            raise RuntimeError("the paused function has ended")
        modes, self._greenlet.parent = Modes.current(), greenlet.getcurrent()
        try:
            event = self._greenlet.switch(reply)
        finally:
            modes.set()
        return Done(event) if self._greenlet.dead else event

    def close(self) -> None:
        """Ends the function where it stands, by an exception that no `except Exception` of a pipeline stops."""
        self._finalizer()


def _end(paused: greenlet.greenlet, thread: int) -> None:
    """Ends a paused function; one of another thread is ended there by greenlet itself, when nobody holds it."""
    if not paused.dead and thread == threading.get_ident():
        modes, paused.parent = Modes.current(), greenlet.getcurrent()
        paused.throw()
        modes.set()
