"""A vLLM server that a run starts on its own machine, and ends with itself."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from mmrl.core.contracts import ConfigError

from . import guard

_LOOK = 0.5  # seconds between two looks at whether it answers
_SHOWN = 2000  # letters of its log in an error
_GOODBYE = 20.0  # seconds that its end may take


@dataclass(frozen=True)
class Served:
    """What a server must serve, as the run knows it."""

    model: str  # a hub name or a folder
    dtype: str  # of its weights, by torch's name
    lora_rank: int | None  # None: all weights are sent
    adapts_tower: bool  # the adapter has tensors in the vision tower or connector
    min_pixels: int | None  # of an image after resizing; None: the processor's
    max_pixels: int | None
    # positions of a second of video, 1 where steps of time count; None: a family whose videos it cannot be given
    video_clock: float | None = None


def arguments_of(served: Served, url: str, *, can_sleep: bool) -> list[str]:
    """Returns the options of `vllm serve` for a run, without those of the user's."""
    parts = urlsplit(url)
    options = ["--host", parts.hostname or "127.0.0.1", "--port", str(parts.port or 8000), "--dtype", served.dtype]
    options += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    if served.lora_rank is not None:
        options += ["--enable-lora", "--max-lora-rank", str(_rank_of(served.lora_rank)), "--max-loras", "2"]
        if served.adapts_tower:
            options += ["--enable-tower-connector-lora"]
    sizes = {"shortest_edge": served.min_pixels, "longest_edge": served.max_pixels}
    given = ", ".join(f'"{name}": {value}' for name, value in sizes.items() if value is not None)
    if given:
        options += ["--mm-processor-kwargs", f'{{"size": {{{given}}}}}']
    return [*options, *(["--enable-sleep-mode"] if can_sleep else [])]


def _rank_of(rank: int) -> int:
    """Returns the smallest rank of vLLM's slots that holds this one. Raises ConfigError above the largest."""
    sizes = (1, 8, 16, 32, 64, 128, 256, 320, 512)
    fitting = [size for size in sizes if size >= rank]
    if not fitting:
        raise ConfigError(f"modality.lora.rank: vLLM has slots for ranks up to {sizes[-1]}, got {rank}")
    return fitting[0]


def environment_of(served: Served, *, can_sleep: bool) -> dict[str, str]:
    """Returns the variables that the server needs beside those of this process."""
    given = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if served.lora_rank is not None:
        given["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if served.lora_rank is None or can_sleep:
        given["VLLM_SERVER_DEV_MODE"] = "1"
    return given


@dataclass
class Launched:
    """A running server: a process that ends with this one, in whatever way this one ends."""

    command: Sequence[str]
    environment: Mapping[str, str]  # beside that of this process
    log: Path  # what the server prints is added to it
    _process: "subprocess.Popen[bytes]" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Starts it; `wait_until` finds out where that fails."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, guard.__file__, *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is for the run, which ends the server in good time
                env={**os.environ, **self.environment},
            )

    def wait_until(self, is_ready: Callable[[], bool], seconds: float) -> None:
        """Waits until it answers. Raises ConfigError, with the end of its log, where it ends or takes longer."""
        until = time.monotonic() + seconds
        while not is_ready():
            if not self.is_alive:
                raise ConfigError(f"engine.start: the vLLM server ended before it answered; {self._words()}")
            if time.monotonic() > until:
                self.end()
                raise ConfigError(
                    f"engine.start: the vLLM server did not answer within {seconds:g} seconds; raise "
                    f"engine.start_seconds, or see why: {self._words()}"
                )
            time.sleep(_LOOK)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Ends it with all its processes; nothing happens where it has ended."""
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.close()
        try:
            self._process.wait(_GOODBYE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _words(self) -> str:
        text = self.log.read_bytes()[-_SHOWN:].decode(errors="replace").strip()
        return f"the end of its log, {self.log}:\n{text}" if text else f"its log, {self.log}, is empty"
