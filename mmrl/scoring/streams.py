"""A stream of its own for scoring, so that rewards run beside sampling on an accelerator."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class SideStream:
    """A stream of the process's accelerator for another thread; nothing on a CPU, whose work is done when it returns.

    A thread begins on device 0 and on its default stream, where the work of all threads waits for each other. Tensors
    of the sampling stream are safe: a chunk is held until the block ends, which waits for all work on it.
    """

    def __init__(self, device: torch.device | None, library: Any = torch.cuda) -> None:
        """Makes no stream yet. `device`: None or any other than CUDA: there is none. `library`: of the streams."""
        self._device = device if device is not None and device.type == "cuda" else None
        self._library = library
        self._stream: Any = None

    def mark(self) -> Any:
        """Returns a mark behind all work that the caller's stream has been given; None on a CPU."""
        return None if self._device is None else self._library.current_stream(self._device).record_event()

    @contextmanager
    def behind(self, mark: Any) -> Iterator[None]:
        """Runs the block on the stream, on the process's device, behind the mark; waits at its end for its work."""
        if self._device is None:
            yield
            return
        with self._library.device(self._device):
            self._stream = self._stream or self._library.Stream(self._device)
            with self._library.stream(self._stream):
                self._stream.wait_event(mark)
                try:
                    yield
                finally:
                    self._stream.synchronize()
