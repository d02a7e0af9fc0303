"""The algorithms side by side on a lab: the same code, model, prompts and evaluation, and the same budgets.

    python benchmarks/compare.py shapes --seeds 10 --rates 1 2 4 --share 0.75 --results tuning.jsonl
    python benchmarks/compare.py shapes --seeds 0 1 2

The first line is how each config was tuned, all with the same effort: three learning rates, as factors of the one in
its file, on a seed of their own, with three quarters of the budgets; the best was then written into the file.

Each run trains a config until it has used up both budgets: network calls (forward passes of one latent or answer, a
backward pass counted as two) and CPU seconds of training on one thread, evaluations not counted; at 1.5 times the
seconds it ends in any case. Evaluations are of half of the lab's held-out samples. One JSON line for each run: what it
was and its curve of held-out scores, from which `compare_page.py` makes the tables and plots of docs/lab.md. A run
whose line is in the results already is not made again, unless its settings changed.
"""

import argparse
import hashlib
import json
import multiprocessing
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from mmrl.checks import plan_summary
from mmrl.config import RunConfig, load_config, shipped_names, to_yaml
from mmrl.parts import build, make_trainer
from mmrl.tracking import Tracking
from mmrl.trainer import Trainer

ROOT = Path(__file__).resolve().parents[1]
ROLLOUT, UPDATES = "network calls of a rollout", "network calls of the updates"  # as `mmrl check` says
PASSES = "forward passes per iteration, a backward pass as two"
MANY = 1_000_000  # iterations: the budgets end a run
NUM_POINTS = 4  # evaluations within the budget of calls
OVERTIME = 1.5  # of the budget of seconds, for a config that makes its calls slowly
EVALUATION = {
    "shapes": ["evaluation.samples_per_prompt=4"],
    "screens": ["evaluation.num_prompts=256", "evaluation.also={}"],
}


@dataclass(frozen=True)
class Budget:
    """What every algorithm of a lab may use."""

    calls: int  # network calls, a backward pass as two
    seconds: float  # CPU seconds of training


BUDGETS = {"shapes": Budget(24_000, 10.0), "screens": Budget(12_000, 10.0)}


@dataclass(frozen=True)
class Point:
    """One evaluation of a run."""

    iteration: int
    calls: int
    seconds: float
    score: float


@dataclass
class Meter:
    """Stands in for the tracking of a run: what it has used, and how good it was when."""

    budget: Budget
    passes: float  # forward passes for each network call, a backward pass as two: by the plan of the config
    trainer: Trainer | None = None
    calls: float = 0.0
    seconds: float = 0.0
    curve: list[Point] = field(default_factory=list)
    _since: float = field(default_factory=time.process_time)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        if "calls/rollout" in metrics:
            self.seconds += time.process_time() - self._since
            self.calls += (metrics["calls/rollout"] + metrics["calls/update"]) * self.passes
        else:
            self.curve.append(Point(iteration, round(self.calls), round(self.seconds, 2), metrics["held_out/score"]))
            assert self.trainer is not None
            is_used_up = self.calls >= self.budget.calls and self.seconds >= self.budget.seconds
            self.trainer.stop_requested = is_used_up or self.seconds >= OVERTIME * self.budget.seconds
        self._since = time.process_time()

    def sync(self) -> None:
        """Nothing is on a disk."""

    def images(self, iteration: int, name: str, paths: Sequence[Path]) -> None:
        """Nobody looks."""


def settings_of(name: str, seed: int, overrides: Sequence[str]) -> RunConfig:
    """The config as it runs here: no schedule that would need to know the end; some evaluations within the budget."""
    fixed = [f"seed={seed}", f"iterations={MANY}", "threads=1", "optimizer.schedule=constant", "checkpoint.every=0",
             "evaluation.saved_samples=0"]  # fmt: skip
    lab = lab_of(name)
    fixed += EVALUATION[lab]
    config = load_config(name, [*fixed, *overrides])
    every = max(1, round(BUDGETS[lab].calls / plan_summary(config)[PASSES] / NUM_POINTS))
    return load_config(name, [*fixed, *overrides, f"evaluation.every={every}"])


def run(name: str, seed: int, overrides: Sequence[str], budget: Budget) -> dict[str, Any]:
    """Trains until the budgets are used up; the line of the results."""
    torch.set_num_threads(1)
    config = settings_of(name, seed, overrides)
    with tempfile.TemporaryDirectory() as folder:
        parts = build(config)
        planned = plan_summary(config)
        meter = Meter(budget, planned[PASSES] / (planned[ROLLOUT] + planned[UPDATES]))
        meter.trainer = make_trainer(config, parts, Path(folder), cast(Tracking, meter))
        meter.trainer.train()
    return {
        **line_key(name, seed, overrides, config),
        "learning_rate": config.optimizer.learning_rate,
        "algorithm": {kind: getattr(config, kind)["name"] for kind in ("sampler", "advantage", "loss")},
        "curve": [asdict(point) for point in meter.curve],
    }


def line_key(name: str, seed: int, overrides: Sequence[str], config: RunConfig) -> dict[str, Any]:
    """What tells one run from another."""
    settings = hashlib.sha256(to_yaml(config).encode()).hexdigest()[:12]
    return {"config": name, "seed": seed, "overrides": list(overrides), "settings": settings}


def is_done(key: Mapping[str, Any], results: Path) -> bool:
    lines = results.read_text("utf-8").splitlines() if results.exists() else []
    return any(all(json.loads(line)[name] == value for name, value in key.items()) for line in lines)


def lab_of(name: str) -> str:
    """The lab that a config trains on."""
    return str(load_config(name).modality.get("model", "")).removeprefix("lab:")


def compared(lab: str) -> list[str]:
    """The shipped configs that train on a lab by one of the algorithms."""
    return [n for n in shipped_names() if n.startswith("lab/") and lab_of(n) == lab]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab", choices=sorted(BUDGETS))
    parser.add_argument("--configs", nargs="+", help="shipped names; every one that trains on the lab by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of every config")
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0], help="factors of each config's learning rate")
    parser.add_argument("--share", type=float, default=1.0, help="of the budgets")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "compare.jsonl")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    whole = BUDGETS[options.lab]
    budget = Budget(round(whole.calls * options.share), whole.seconds * options.share)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    runs = [
        (name, seed, [*options.set, f"optimizer.learning_rate={load_config(name).optimizer.learning_rate * factor:.4g}"]
         if factor != 1 else options.set)
        for seed in options.seeds for name in options.configs or compared(options.lab) for factor in options.rates
    ]  # fmt: skip
    wanted = [one for one in runs if not is_done(line_key(*one, settings_of(*one)), options.results)]
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(run, *one, budget): one for one in wanted}
        for future in as_completed(futures):
            name, seed, overrides = futures[future]
            if error := future.exception():
                print(f"{name} seed {seed} FAILED: {error}", flush=True)
                continue
            line = future.result()
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            last = line["curve"][-1]
            used = f"{last['seconds']} s, {last['calls']} calls"
            print(f"{name} {' '.join(overrides)} seed {seed}: {last['score']:.3f} after {used}", flush=True)


if __name__ == "__main__":
    main()
