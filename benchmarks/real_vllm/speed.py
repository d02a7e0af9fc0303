"""Tokens a second of the trainer's own rollouts and of a real vLLM, by this checkout's client and by an older one's."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import psutil

from mmrl.labs import checkpoint

from .environment import serving

ROOT = Path(__file__).resolve().parents[2]
# answers, and tokens of each at most
CASES = {"screens": (2048, 12), "random": (256, 128)}


class Sampler:
    """A process that samples answers by the package of a checkout, by its own rollout or by the server at `url`."""

    def __init__(self, checkout: Path, case: str, folder: Path, url: str | None) -> None:
        """Starts it, and waits until its model is there."""
        path = os.pathsep.join([str(checkout), str(ROOT / "benchmarks")])
        self._process = subprocess.Popen(
            [sys.executable, __file__, case, str(folder), url or ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            cwd=checkout,
        )
        self.ask("figures")

    def ask(self, question: str) -> dict[str, float]:
        """Returns the figures of one rollout (`figures`), or of sending changed weights (`sync`)."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return cast("dict[str, float]", json.loads(self._process.stdout.readline()))

    def end(self) -> None:
        """Ends it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def rows(folder: Path, pairs: int, against: Path | None) -> Iterator[dict[str, Any]]:
    """Gives a line for each model; ratios are of tokens a second within a round, the median over rounds."""
    import decode

    with TemporaryDirectory() as parent:
        decode.write_random(Path(parent))
        for case, model in (("screens", checkpoint("screens")), ("random", Path(parent))):
            with serving(folder, model) as url:
                yield {"case": case} | _compared(case, model, url, pairs, against)


def _compared(case: str, model: Path, url: str, pairs: int, against: Path | None) -> dict[str, Any]:
    sides = {"own": Sampler(ROOT, case, model, None), "vllm": Sampler(ROOT, case, model, url)}
    if against is not None:
        sides["before"] = Sampler(against.resolve(), case, model, url)
    rounds: list[dict[str, dict[str, float]]] = []
    try:
        for number in range(pairs):
            order = list(sides) if number % 2 else list(reversed(sides))
            rounds.append({side: _figures_of(sides[side]) for side in order})
        syncs = [sides["vllm"].ask("sync")["seconds"] for _ in range(3)]
    finally:
        for sampler in sides.values():
            sampler.end()
    found: dict[str, Any] = {"sync_seconds": round(statistics.median(syncs), 3)}
    for side in sides:
        for unit in ("seconds", "cpu_seconds"):
            values = [each[side]["tokens"] / each[side][unit] for each in rounds]
            found[f"{side}_tokens_per_{unit.removesuffix('s')}"] = round(statistics.median(values), 1)
    for other in [side for side in sides if side != "vllm"]:
        ratios = [_speed(each["vllm"]) / _speed(each[other]) for each in rounds]
        found[f"vllm_over_{other}"] = round(statistics.median(ratios), 3)
    return found


def _figures_of(side: Sampler) -> dict[str, float]:
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
        if "vllm" in " ".join(process.cmdline()).lower() and __file__ not in process.cmdline():
            times = process.cpu_times()
            total += times.user + times.system
    return total


def work(case: str, folder: Path, url: str) -> None:
    """Answers the questions of the process that started this one."""
    import decode
    import torch

    from mmrl.modalities.tokens.vllm.engine import Vllm

    answers, tokens = CASES[case]
    decoder = decode.Decoder(case, folder, answers, tokens)
    if url:
        decoder.policy.engine = Vllm(name="vllm", url=url)
    weights = decoder.policy.weights.parameters
    for line in sys.stdin:
        if line.strip() == "sync":
            with torch.no_grad():
                next(iter(weights.values())).add_(1e-6)
            begin = time.perf_counter()
            decoder.policy.send_weights()
            found = {"seconds": time.perf_counter() - begin}
        else:
            begin, cpu = time.perf_counter(), time.process_time()
            completions = decoder.sample()
            used, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
            found = {"seconds": used, "cpu_seconds": cpu_seconds, "tokens": int(completions.length.sum())}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
