"""A function in a thread of its own, which runs only while its caller waits for it."""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Self

import torch


class Closed(BaseException):
    """Ends a paused function from inside; no `except Exception` of a pipeline stops it."""


@dataclass(frozen=True)
class Modes:
    """The modes of torch that each thread has for itself."""

    is_grad_enabled: bool
    is_inference: bool
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
            torch.is_inference_mode_enabled(),
            tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds),
            torch.is_autocast_cache_enabled(),
            torch.get_default_dtype(),
            (torch.cuda.current_device(), torch.cuda.current_stream()) if is_cuda else None,
        )

    def set(self) -> None:
        """Sets the modes in the calling thread, but for inference mode, which only a context can set."""
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


class Channel:
    """The two directions between a paused function and its caller."""

    def __init__(self) -> None:
        self._replies: SimpleQueue[Any] = SimpleQueue()
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._inference: Any = None  # the context that is entered while the function runs

    def ask(self, event: Any) -> Any:
        """Hands an event out of the paused function and returns the caller's reply."""
        self._leave()
        self._events.put(event)
        return self._wait()

    def send(self, reply: Any) -> Any:
        """Hands a reply in, with the caller's modes, and returns the next event."""
        self._replies.put((reply, Modes.current()))
        return self._events.get()

    def close(self) -> None:
        """Lets the function raise `Closed` where it waits."""
        self._replies.put((Closed, None))

    def serve(self, function: "Callable[[], Any]") -> None:
        """Runs the function: the body of its thread."""
        try:
            self._wait()
            event: Done | Failed = Done(function())
        except Closed:
            self._leave()
            return
        except BaseException as error:  # handed to the caller, who raises it
            event = Failed(error)
        self._leave()
        self._events.put(event)

    def _wait(self) -> Any:
        reply, modes = self._replies.get()
        if reply is Closed:
            raise Closed
        if modes.is_inference:
            self._inference = torch.inference_mode()
            self._inference.__enter__()
        modes.set()  # behind inference mode, which switches autograd off
        return reply

    def _leave(self) -> None:
        if self._inference is not None:
            self._inference.__exit__(None, None, None)
            self._inference = None


@dataclass(frozen=True)
class Done:
    """The function returned."""

    result: Any


@dataclass(frozen=True)
class Failed:
    """The function raised."""

    error: BaseException


class Paused:
    """The caller's side of a paused function. Without `close`, the thread ends when this object is collected."""

    def __init__(self, function: "Callable[[], Any]", channel: Channel) -> None:
        """Starts the thread. `function` must hold no reference to this object, or it is never collected."""
        self._channel = channel
        self._thread = threading.Thread(target=channel.serve, args=(function,), daemon=True, name="paused pipeline")
        self._thread.start()
        self._finalizer = weakref.finalize(self, _end, channel, self._thread)

    @property
    def is_alive(self) -> bool:
        """Returns whether the function can still be resumed."""
        return self._thread.is_alive()

    def resume(self, reply: Any = None) -> Any:
        """Hands a reply over and returns the next event; `Done` is the last.

        Raises what the function raises, and RuntimeError where it has ended.
        """
        if not self.is_alive:  # nobody would answer
            raise RuntimeError("the paused function has ended")
        event = self._channel.send(reply)
        if isinstance(event, Done | Failed):
            self._thread.join()
        if isinstance(event, Failed):
            raise event.error
        return event

    def close(self) -> None:
        """Ends the function and its thread."""
        self._finalizer()


def _end(channel: Channel, thread: threading.Thread) -> None:
    """Ends a paused function; also at the exit of Python, where a thread that still runs would abort it."""
    channel.close()
    if thread is not threading.current_thread():  # which may be the one that collects garbage
        thread.join()
