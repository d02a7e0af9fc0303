"""What a run does when its real vLLM is killed, hangs, moves, has other weights, or when the run itself is killed."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import psutil

from mmrl.core.contracts import ConfigError
from mmrl.labs import checkpoint
from mmrl.modalities.tokens.vllm.weights import PREFIX
from mmrl.reporting.record import read_record
from mmrl.system.json_server import JsonServer

from . import environment

LAB = "screens"
RUN = ["quickstart_gui", "iterations=5", "evaluation=null", "checkpoint.every=2"]


@dataclass
class Trained:
    """A run in a process of its own."""

    run: Path
    settings: Sequence[str]
    process: "subprocess.Popen[str]" = field(init=False)

    def __post_init__(self) -> None:
        """Starts it."""
        begin = [sys.executable, "-m", "mmrl", "train"]
        given = ["--resume", str(self.run)] if (self.run / "config.yaml").exists() else [*RUN, "--out", str(self.run)]
        self.process = subprocess.Popen(
            [*begin, *given, *self.settings], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def reach(self, iteration: int) -> None:
        """Waits until so many iterations are done, or the run has ended."""
        while self.process.poll() is None and iterations_of(self.run) < iteration:
            time.sleep(0.1)

    def outcome(self) -> dict[str, Any]:
        """Waits for its end, and returns its exit code, its last words and what it left."""
        _, words = self.process.communicate(timeout=900)
        said = [line for line in words.splitlines() if line.startswith("mmrl:") or "waiting" in line]
        return {"exit": self.process.returncode, "iterations": iterations_of(self.run), "says": said[-1:], **left()}


def iterations_of(run: Path) -> int:
    """Returns how many iterations a run has logged, also while it writes."""
    with suppress(ConfigError):  # nothing is there yet
        return read_record(run).span[1]
    return 0


def processes_of(url: str) -> list[psutil.Process]:
    """Returns the processes of the server at this address, its first one first."""
    port = url.rpartition(":")[2]
    fronts = [one for one in psutil.process_iter() if _serves(one, port)]
    return [each for front in fronts for each in (front, *front.children(recursive=True))]


def _serves(process: psutil.Process, port: str) -> bool:
    with suppress(psutil.Error):
        words = process.cmdline()
        return port in words and "serve" in words and not any(word.endswith("guard.py") for word in words)
    return False


def send(url: str, number: signal.Signals) -> None:
    """Sends a signal to all processes of a server."""
    for process in processes_of(url):
        with suppress(psutil.Error):
            process.send_signal(number)


def left() -> dict[str, int]:
    """Returns how many folders of weights lie in the temporary folder."""
    return {"folders_left": len(list(Path(gettempdir()).glob(f"{PREFIX}*")))}


def adapters_at(url: str) -> int:
    """Returns how many adapters a server has."""
    cards = JsonServer(url, timeout_seconds=30, retries=0).get("/v1/models")["data"]
    return sum(card.get("parent") is not None for card in cards)


def engine(url: str, **more: object) -> str:
    """Returns the setting of an engine at an address."""
    return "modality.engine=" + json.dumps({"name": "vllm", "url": url, **more})


def started(folder: Path, url: str, **more: object) -> str:
    """Returns the setting of a server that the run starts."""
    options = list(environment.OPTIONS)
    return engine(url, start=True, command=environment.command(folder), options=options, **more)


def killed(folder: Path, parent: Path) -> Iterator[dict[str, Any]]:
    """A server that is killed, with a run that does not wait for it, and that is resumed at another address."""
    with environment.serving(folder, checkpoint(LAB)) as url:
        trained = Trained(parent / "run", [engine(url)])
        trained.reach(3)
        send(url, signal.SIGKILL)
        yield {"fault": "server killed", **trained.outcome()}
        yield {"fault": "resumed without a server", **Trained(parent / "run", []).outcome()}
    with environment.serving(folder, checkpoint(LAB)) as url:
        resumed = Trained(parent / "run", [f"modality.engine.url={url}"])
        yield {"fault": "resumed at another address", **resumed.outcome()}


def restarted(folder: Path, parent: Path) -> Iterator[dict[str, Any]]:
    """A server that the run started, killed in the middle: it is started again and gets the newest weights."""
    url = environment.free_url()
    trained = Trained(parent / "run", [started(folder, url, outage_seconds=600)])
    trained.reach(2)
    send(url, signal.SIGKILL)
    found = trained.outcome()
    differences = read_record(parent / "run").metrics["engine/difference"].values
    yield {"fault": "own server killed", **found, "largest_difference": max(differences), "processes": running(url)}


def hung(folder: Path, parent: Path) -> Iterator[dict[str, Any]]:
    """A server that stops and says nothing."""
    with environment.serving(folder, checkpoint(LAB)) as url:
        trained = Trained(parent / "run", [engine(url, timeout_seconds=15)])
        trained.reach(2)
        send(url, signal.SIGSTOP)
        yield {"fault": "server hangs", **trained.outcome()}
        send(url, signal.SIGCONT)
        yield {"fault": "resumed when it goes on", **Trained(parent / "run", []).outcome()}


def full_disk(folder: Path, parent: Path) -> Iterator[dict[str, Any]]:
    """A folder for weights in which there is no room."""
    room = parent / "room"
    room.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(room)], check=True)
    try:
        with environment.serving(folder, checkpoint(LAB)) as url:
            yield {"fault": "full disk", **Trained(parent / "run", [engine(url, folder=str(room))]).outcome()}
    finally:
        subprocess.run(["umount", str(room)], check=True)


def other_model(folder: Path, parent: Path) -> Iterator[dict[str, Any]]:
    """A server of another lab's model: for all weights it gets the run's, for a LoRA it has a base of its own."""
    with environment.serving(folder, checkpoint("tasks")) as url:
        yield {"fault": "other base, all weights", **Trained(parent / "whole", [engine(url)]).outcome()}
    with environment.serving(folder, checkpoint("tasks"), lora_rank=8) as url:
        lora = "modality.lora={rank: 8, alpha: 16}"
        trained = Trained(parent / "lora", [engine(url), lora])
        yield {"fault": "other base, LoRA", **trained.outcome(), "adapters_left": adapters_at(url)}


def run_killed(folder: Path, parent: Path) -> Iterator[dict[str, Any]]:
    """A run that is killed, and the next one."""
    url = environment.free_url()
    trained = Trained(parent / "run", [started(folder, url)])
    trained.reach(2)
    trained.process.kill()
    trained.process.wait()
    until = time.monotonic() + 30
    while running(url) and time.monotonic() < until:
        time.sleep(0.2)
    yield {"fault": "run killed", "processes": running(url), **left()}
    yield {"fault": "the next run", **Trained(parent / "run", []).outcome(), "processes": running(url)}


def running(url: str) -> int:
    """Returns how many processes of a server live."""
    return len(processes_of(url))


FAULTS: dict[str, Callable[[Path, Path], Iterator[dict[str, Any]]]] = {
    "killed": killed,
    "restarted": restarted,
    "hung": hung,
    "full_disk": full_disk,
    "other_model": other_model,
    "run_killed": run_killed,
}


def rows(folder: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Gives a line for each thing that goes wrong. Folders of weights of other runs must not be there."""
    for name in names:
        with TemporaryDirectory() as parent:
            yield from FAULTS[name](folder, Path(parent))
