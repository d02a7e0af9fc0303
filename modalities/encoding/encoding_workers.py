"""Threads that decode and encode prompts beside the loop, in order and within a budget of bytes."""

import threading
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Literal

from mmrl.core.data import Prompt

from .inputs import EncodedPrompt

Encode = Callable[[Prompt], EncodedPrompt]
PATIENCE = 30.0  # seconds that `close` waits for a thread: a decoder that hangs must not keep the process alive


@dataclass(eq=False)
class _Job:
    prompt: Prompt
    state: Literal["queued", "running", "done"] = "queued"
    encoded: EncodedPrompt | None = None
    error: BaseException | None = None  # raised again by whoever takes the job

    @property
    def num_bytes(self) -> int:
        return 0 if self.encoded is None else self.encoded.num_bytes


class EncodingWorkers:
    """Up to `count` threads that encode prompts in the order of submission.

    No thread begins a prompt while encoded prompts that nobody has taken fill `max_bytes`; so they may exceed it by
    one prompt for each thread. A prompt that cannot be encoded is an error where it is taken, and nowhere else. Threads
    are enough: decoding images and videos, and resizing them, hold no lock of Python.
    """

    def __init__(self, count: int, max_bytes: int, encoder: Callable[[], Encode]) -> None:
        """Makes no thread yet. `encoder`: makes what encodes a prompt, one for each thread, in the caller's thread."""
        self._count, self._max_bytes, self._encoder = count, max_bytes, encoder
        self._jobs: dict[Hashable, _Job] = {}  # in the order of submission
        self._threads: list[threading.Thread] = []
        self._encoders: list[Encode] = []  # of processors: copies of a tokenizer take a moment, and are kept
        self._changed = threading.Condition()
        self._generation = 0  # of the threads: those of an earlier one end
        self.seconds = 0.0  # that all threads worked so far

    def submit(self, key: Hashable, prompt: Prompt) -> None:
        """Queues a prompt under a key, unless it was submitted before; returns at once."""
        with self._changed:
            if key not in self._jobs:
                self._jobs[key] = _Job(prompt)
                self._changed.notify()
        while len(self._threads) < min(self._count, len(self._jobs)):
            self._start()

    def take(self, key: Hashable) -> EncodedPrompt | None:
        """Returns the prompt of a key, and forgets it; waits for the thread that is at work on it.

        None: it was not submitted, or no thread has begun it; the caller then encodes it faster. Raises what its
        encoding raised.
        """
        with self._changed:
            job = self._jobs.get(key)
            if job is None:
                return None
            while job.state == "running":
                self._changed.wait()
            del self._jobs[key]
            self._changed.notify_all()  # there is room for the next prompts
        if job.error is not None:
            raise job.error
        return job.encoded

    def forget_others(self, keys: Collection[Hashable]) -> None:
        """Drops all prompts but those of the keys; one that a thread is at work on is finished and dropped."""
        with self._changed:
            self._jobs = {key: job for key, job in self._jobs.items() if key in keys}
            self._changed.notify_all()

    def close(self) -> None:
        """Drops all prompts and ends the threads; `submit` starts new ones."""
        with self._changed:
            self._jobs = {}
            self._generation += 1
            self._changed.notify_all()
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._threads = []

    def _start(self) -> None:
        number = len(self._threads)
        if number == len(self._encoders):
            self._encoders.append(self._encoder())
        given = (self._encoders[number], self._generation)
        self._threads.append(threading.Thread(target=self._work, args=given, daemon=True, name=f"encoding_{number}"))
        self._threads[-1].start()

    def _work(self, encode: Encode, generation: int) -> None:
        while (job := self._next(generation)) is not None:
            started = time.perf_counter()
            try:
                job.encoded = encode(job.prompt)
            except BaseException as error:  # raised again by `take`
                job.error = error
            with self._changed:
                job.state = "done"
                self.seconds += time.perf_counter() - started
                self._changed.notify_all()

    def _next(self, generation: int) -> _Job | None:
        """Returns the next prompt to encode, as soon as there is one and room for it; None: the thread is to end."""
        with self._changed:
            while generation == self._generation:
                waiting = next((job for job in self._jobs.values() if job.state == "queued"), None)
                if waiting is not None and sum(job.num_bytes for job in self._jobs.values()) < self._max_bytes:
                    waiting.state = "running"
                    return waiting
                self._changed.wait()
            return None
