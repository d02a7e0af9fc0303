"""Tokens a second of the trainer's own rollouts and of a real vLLM, by this checkout's client and by an older one's."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import decode
import psutil

from mmrl.labs import checkpoint

from .environment import serving

# answers, and tokens of each at most
CASES = {"screens": (2048, 12), "random": (64, 64)}


def rows(folder: Path, pairs: int, against: Path | None, cases: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Gives a line for each model; ratios are of tokens a second within a round, the median over rounds."""
    with TemporaryDirectory() as parent:
        decode.write_random(Path(parent))
        models = {"screens": (checkpoint("screens"), None), "random": (Path(parent), decode.PIXELS)}
        for case in cases:
            model, pixels = models[case]
            with ExitStack() as servers:  # one for each client, which gives it weights of its own
                count = 1 if against is None else 2
                urls = [servers.enter_context(serving(folder, model, pixels=pixels)) for _ in range(count)]
                yield {"case": case} | _compared(case, model, urls, pairs, against)


def _compared(case: str, model: Path, urls: Sequence[str], pairs: int, against: Path | None) -> dict[str, Any]:
    answers, tokens = CASES[case]
    shape = {"case": case, "folder": str(model), "answers": answers, "tokens": tokens}
    sides = {"own": decode.Worker(decode.ROOT, **shape), "vllm": decode.Worker(decode.ROOT, **shape, url=urls[0])}
    rounds: list[dict[str, dict[str, float]]] = []
    try:
        if against is not None:
            sides["before"] = decode.Worker(against.resolve(), **shape, url=urls[1])
        for side in sides.values():
            side.ask("figures")  # what is made once is there
        for number in range(pairs):
            order = list(sides) if number % 2 else list(reversed(sides))
            rounds.append({name: _figures_of(sides[name]) for name in order})
        syncs = [sides["vllm"].ask("sync")["seconds"] for _ in range(3)]
    finally:
        for side in sides.values():
            side.end()
    found: dict[str, Any] = {"sync_seconds": round(statistics.median(syncs), 3)}
    for name in sides:
        for unit in ("seconds", "cpu_seconds"):
            values = [each[name]["tokens"] / each[name][unit] for each in rounds]
            found[f"{name}_tokens_per_{unit.removesuffix('s')}"] = round(statistics.median(values), 1)
    for other in [name for name in sides if name != "vllm"]:
        ratios = [_speed(each["vllm"]) / _speed(each[other]) for each in rounds]
        found[f"vllm_over_{other}"] = round(statistics.median(ratios), 3)
    return found


def _figures_of(side: decode.Worker) -> dict[str, float]:
    """Returns the figures of one rollout; CPU seconds are those of the server too."""
    before = _server_seconds()
    found = side.ask("figures")
    return found | {"cpu_seconds": found["cpu_seconds"] + _server_seconds() - before}


def _speed(figures: dict[str, float]) -> float:
    return figures["tokens"] / figures["seconds"]


def _server_seconds() -> float:
    """Returns the CPU seconds so far of the servers that this process started."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        if "vllm" in " ".join(process.cmdline()).lower() and decode.__file__ not in process.cmdline():
            times = process.cpu_times()
            total += times.user + times.system
    return total
