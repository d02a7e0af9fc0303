"""Training seconds to a held-out accuracy: mmrl's lab configs against a plain Flow-GRPO loop.

    python benchmarks/time_to_reward.py --seeds 0 1 2

The target is the mean accuracy over the seeds of the plain loop (`flow_iteration.Plain`, all steps random, full
fine-tuning) after 20 iterations, on images of held-out prompts. A run's time is its CPU seconds of training at the
first of two successive evaluations at or above the target; evaluations are not timed. Both sides are evaluated every
few iterations with the same noise, and take turns: a seed is trained by each before the next seed.
Bars: the median over seeds is at most 0.45 of plain's for the policy gradient and 0.25 for NFT.
"""

import contextlib
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from _common import argument_parser, emit
from flow_iteration import Noise, Plain, group_advantages
from torch import nn

from mmrl import Callback, TrainControl, TrainState
from mmrl.commands.train import train
from mmrl.core.keys import GroupKey, normal
from mmrl.labs.shapes.world import prompts, verify
from mmrl.run_directory.start import new_run

GROUPS, MEMBERS, STEPS, LATENT = 8, 16, 8, (4, 4, 4)
TARGET_ITERATION = 20
BARS = {"quickstart": 0.25, "quickstart_policy_gradient": 0.45}  # share of plain's seconds


@dataclass(frozen=True)
class Point:
    """One evaluation of a run."""

    iteration: int
    seconds: float  # of training before it
    accuracy: float


@dataclass
class TrainingClock(Callback):
    """The curve of a run over CPU seconds of training: evaluations and what comes before training are not counted."""

    curve: list[Point] = field(default_factory=list)
    seconds: float = 0.0
    mark: float = 0.0  # since when the time counts

    def on_train_begin(self, state: TrainState, control: TrainControl) -> None:
        self.mark = time.process_time()

    def on_iteration_end(self, state: TrainState, control: TrainControl) -> None:
        now = time.process_time()
        self.seconds, self.mark = self.seconds + now - self.mark, now

    def on_evaluate(self, state: TrainState, control: TrainControl) -> None:
        assert state.held_out_score is not None
        self.curve.append(Point(state.iteration, self.seconds, state.held_out_score))
        self.mark = time.process_time()


def plain_curve(seed: int, iterations: int, every: int, images: int) -> list[Point]:
    """Trains the plain loop: Adam 3e-4, all seven steps random at noise level 0.7, one update per iteration."""
    torch.manual_seed(seed)
    plain, train = Plain(STEPS), prompts("train")
    plain.pipeline.transformer.requires_grad_(True)
    optimizer = torch.optim.AdamW(plain.parameters, lr=3e-4, betas=(0.9, 0.99), weight_decay=0)
    curve, seconds = [Point(0, 0.0, accuracy(plain, images))], 0.0
    for iteration in range(1, iterations + 1):
        started = time.process_time()
        plain_iteration(plain, optimizer, [train[int(n)] for n in torch.randperm(len(train))[:GROUPS]])
        seconds += time.process_time() - started
        if iteration % every == 0:
            curve.append(Point(iteration, seconds, accuracy(plain, images)))
    return curve


def plain_iteration(plain: Plain, optimizer: torch.optim.Optimizer, prompts: list[str]) -> None:
    """Samples, scores, goes one step."""
    states, pooled = (part.repeat_interleave(MEMBERS, 0) for part in plain.encode(prompts))
    shape = (GROUPS * MEMBERS, *LATENT)
    noise = Noise(torch.randn(shape), {number: torch.randn(shape) for number in range(STEPS - 1)})
    latents, decisions = plain.rollout((states, pooled), noise)
    images = plain.decode(latents)
    rewards = verify(images, [prompt for prompt in prompts for _ in range(MEMBERS)]).graded
    plain.backward((states, pooled), decisions, group_advantages(rewards, MEMBERS))
    nn.utils.clip_grad_norm_(plain.parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def accuracy(plain: Plain, count: int) -> float:
    """Share of correct images, `count` of each held-out prompt, with the noise and steps of the configs' evaluation."""
    texts, right = prompts("held_out"), 0
    sampler = Plain(10, pipeline=plain.pipeline)
    for start in range(0, len(texts), 16):
        part = texts[start : start + 16]
        keys = [GroupKey(123, 0, start + place) for place in range(len(part))]
        roots = torch.cat([normal(key.seed_for("root"), (count, *LATENT)) for key in keys])
        states, pooled = (value.repeat_interleave(count, 0) for value in sampler.encode(part))
        latents, _ = sampler.rollout((states, pooled), Noise(roots, {}))
        verdict = verify(sampler.decode(latents), [text for text in part for _ in range(count)])
        right += int(verdict.is_correct.sum())
    return right / (len(texts) * count)


def mmrl_curve(config: str, seed: int, threads: int, every: int, images: int, changes: Sequence[str]) -> list[Point]:
    """Trains a shipped config as the command line does, with some settings changed."""
    overrides = [f"seed={seed}", f"threads={threads}", f"evaluation.every={every}", "checkpoint.every=0"]
    overrides += ["evaluation.saved_samples=0", f"evaluation.samples_per_prompt={images}", *changes]
    clock = TrainingClock()
    with tempfile.TemporaryDirectory() as parent:
        checked, folder = new_run(config, overrides, Path(parent) / "run")
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for JSON lines
            train(checked, folder, callbacks=[clock])
    return clock.curve


def reached(curve: Sequence[Point], target: float) -> Point | None:
    """The first of two successive evaluations at or above the target."""
    for first, second in pairwise(curve):
        if min(first.accuracy, second.accuracy) >= target:
            return first
    return None


def summary(name: str, curves: Sequence[Sequence[Point]], target: float) -> dict[str, Any]:
    """When each seed reached the target, where it ended, and its best evaluation."""
    found = [reached(curve, target) for curve in curves]
    return {
        "name": name,
        "seconds": [point and round(point.seconds, 2) for point in found],
        "iterations": [point and point.iteration for point in found],
        "median": statistics.median(point.seconds if point else math.inf for point in found),
        "end": [round(curve[-1].accuracy, 3) for curve in curves],
        "best": [round(max(point.accuracy for point in curve), 3) for curve in curves],
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--configs", nargs="+", default=list(BARS))
    parser.add_argument("--plain-iterations", type=int, default=40)
    parser.add_argument("--set", nargs="+", default=[], help="settings of the configs, as of `mmrl train`")
    parser.add_argument("--every", type=int, nargs="+", default=[2], help="iterations per evaluation: all, or by side")
    parser.add_argument("--images", type=int, default=8, help="of each of the 72 held-out prompts")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    curves: dict[str, list[list[Point]]] = {name: [] for name in ("plain", *options.configs)}
    if len(options.every) not in (1, len(curves)):
        parser.error(f"--every needs one number, or one for each of {', '.join(curves)}, got {options.every}")
    intervals = dict(zip(curves, options.every * len(curves), strict=False))
    for seed, name in product(options.seeds, curves):
        if name == "plain":
            curve = plain_curve(seed, options.plain_iterations, intervals[name], options.images)
        else:
            curve = mmrl_curve(name, seed, options.threads, intervals[name], options.images, options.set)
        curves[name].append(curve)
        emit("time_to_reward run", name=name, seed=seed, curve=[astuple(point) for point in curve])
    at_target = [point for curve in curves["plain"] for point in curve if point.iteration == TARGET_ITERATION]
    target = statistics.mean(point.accuracy for point in at_target)
    summaries = [summary(name, runs, target) for name, runs in curves.items()]
    plain = summaries[0]["median"]
    for found in summaries:
        median = found.pop("median")
        share = median / plain if math.isfinite(median) and math.isfinite(plain) else None
        emit("time_to_reward", seeds=options.seeds, target=target, **found, share=share, bar=BARS.get(found["name"]))


if __name__ == "__main__":
    main()
