"""The algorithms side by side on a lab: the same code, model, prompts and evaluation, and the same budgets.

    python benchmarks/compare.py shapes --tune
    python benchmarks/compare.py shapes
    python benchmarks/compare.py shapes --longer --configs lab/d3po lab/prdp
    python benchmarks/compare.py shapes --once --configs lab/loop lab/flow_grpo

The first line tunes each config, all with the same effort: the learning rate of its file, twice and four times that, on
a seed of its own, with three quarters of the budgets. The second takes the best of the three, on three other seeds. The
rest of a config is that of its file; schedules of the learning rate are left out, since they would know the end. The
third goes on to six times the budgets, at the best rate and at that of the file. The last runs one seed at the rate of
the file, without tuning: a first look.

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

from mmrl.assembly.build import build, make_trainer
from mmrl.commands.check import plan_summary
from mmrl.core.config import DESCRIBING, RunConfig, dump_yaml, load_config, shipped_names
from mmrl.reporting.tracking import Tracking
from mmrl.system.progress_bars import Counter
from mmrl.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[1]
ROLLOUT, UPDATES = "network calls of a rollout", "network calls of the updates"  # as `mmrl check` says
PASSES = "forward passes per iteration, a backward pass as two"
RESULTS, TUNING, LONGER, ONCE = (
    ROOT / "benchmarks" / "results" / f"{name}.jsonl"
    for name in ("compare", "tuning", "compare_longer", "compare_once")
)
SEEDS, TUNING_SEED = (0, 1, 2), 10
FACTORS, TUNING_SHARE = (1, 2, 4), 0.75  # of the learning rate of a config's file; of the budgets
TIMES = 6  # the budgets, of the longer runs
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

    def times(self, factor: float) -> "Budget":
        return Budget(round(self.calls * factor), self.seconds * factor)


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

    def counter(self, what: str, total: int) -> Counter:
        """Returns a counter that is shown nowhere."""
        return Counter(what, total, None)

    def sync(self) -> None:
        """Nothing is on a disk."""

    def images(self, iteration: int, name: str, paths: Sequence[Path]) -> None:
        """Nobody looks."""


def settings_of(name: str, seed: int, learning_rate: float) -> RunConfig:
    """The config as it runs here: no schedule that would need to know the end; some evaluations within the budget."""
    fixed = [f"seed={seed}", f"optimizer.learning_rate={learning_rate:.4g}", f"iterations={MANY}", "threads=1",
             "optimizer.schedule=constant", "checkpoint.every=0", "evaluation.saved_samples=0"]  # fmt: skip
    lab = lab_of(name)
    fixed += EVALUATION[lab]
    config = load_config(name, fixed)
    every = max(1, round(BUDGETS[lab].calls / plan_summary(config)[PASSES] / NUM_POINTS))
    return load_config(name, [*fixed, f"evaluation.every={every}"])


def run(name: str, seed: int, learning_rate: float, budget: Budget) -> dict[str, Any]:
    """Trains until the budgets are used up; the line of the results."""
    torch.set_num_threads(1)
    config = settings_of(name, seed, learning_rate)
    with tempfile.TemporaryDirectory() as folder:
        parts = build(config)
        planned = plan_summary(config)
        meter = Meter(budget, planned[PASSES] / (planned[ROLLOUT] + planned[UPDATES]))
        meter.trainer = make_trainer(config, parts, Path(folder), cast(Tracking, meter))
        meter.trainer.train()
    return {
        **line_key(config, name),
        "algorithm": {kind: getattr(config, kind)["name"] for kind in ("sampler", "advantage", "loss")},
        "curve": [asdict(point) for point in meter.curve],
    }


def line_key(config: RunConfig, name: str) -> dict[str, Any]:
    """What tells one run from another."""
    deciding = {key: value for key, value in config.model_dump(mode="json").items() if key not in DESCRIBING}
    settings = hashlib.sha256(dump_yaml(deciding).encode()).hexdigest()[:12]
    return {"config": name, "seed": config.seed, "learning_rate": config.optimizer.learning_rate, "settings": settings}


def lines_of(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text("utf-8").splitlines()] if results.exists() else []


def lab_of(name: str) -> str:
    """The lab that a config trains on."""
    return str(load_config(name).modality.get("model", "")).removeprefix("lab:")


def compared(lab: str) -> list[str]:
    """The shipped configs that train on a lab by one of the algorithms."""
    return [n for n in shipped_names() if n.startswith("lab/") and lab_of(n) == lab]


def best_rate(name: str) -> float:
    """The learning rate that ended highest when the config was tuned."""
    tuned = [line for line in lines_of(TUNING) if line["config"] == name]
    if not tuned:
        raise SystemExit(f"{name} is not tuned yet: run with --tune first")
    return float(max(tuned, key=lambda line: line["curve"][-1]["score"])["learning_rate"])


def write_all(wanted: Sequence[tuple[str, int, float]], budget: Budget, results: Path, workers: int) -> None:
    """Makes the runs that are not in the results yet, and says how each ended."""
    keys = [line_key(settings_of(*one), one[0]) for one in wanted]
    done = [{name: line[name] for name in keys[0]} for line in lines_of(results)]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        new = [one for one, key in zip(wanted, keys, strict=True) if key not in done]
        futures = {pool.submit(run, *one, budget): one for one in new}
        for future in as_completed(futures):
            name, seed, rate = futures[future]
            said = f"{name} seed {seed} at {rate:.4g}"
            if error := future.exception():
                print(f"{said} FAILED: {error}", flush=True)
                continue
            line = future.result()
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            last = line["curve"][-1]
            print(f"{said}: {last['score']:.3f} after {last['seconds']} s, {last['calls']} calls", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab", choices=sorted(BUDGETS))
    parser.add_argument("--configs", nargs="+", help="shipped names; every lab/ one that trains on the lab by default")
    parser.add_argument("--tune", action="store_true", help="try learning rates")
    parser.add_argument("--longer", action="store_true", help=f"{TIMES} times the budgets")
    parser.add_argument("--once", action="store_true", help="one seed at the rate of the file")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    names, budget = options.configs or compared(options.lab), BUDGETS[options.lab]
    RESULTS.parent.mkdir(exist_ok=True)
    rates = {name: load_config(name).optimizer.learning_rate for name in names}
    if options.tune:
        wanted = [(name, TUNING_SEED, rates[name] * factor) for name in names for factor in FACTORS]
        write_all(wanted, budget.times(TUNING_SHARE), TUNING, options.workers)
        return
    if options.once:
        write_all([(name, SEEDS[0], rates[name]) for name in names], budget, ONCE, options.workers)
        return
    best = {name: best_rate(name) for name in names}
    wanted = [(name, seed, best[name]) for seed in SEEDS for name in names]
    if options.longer:
        wanted += [(name, seed, rates[name]) for seed in SEEDS for name in names if rates[name] != best[name]]
        write_all(wanted, budget.times(TIMES), LONGER, options.workers)
    else:
        write_all(wanted, budget, RESULTS, options.workers)


if __name__ == "__main__":
    main()
