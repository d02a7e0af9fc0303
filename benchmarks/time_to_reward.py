"""Training seconds to a held-out accuracy: mmrl's lab configs against a plain Flow-GRPO loop.

    python benchmarks/time_to_reward.py --seeds 0 1 2

The target is the mean accuracy over the seeds of the plain loop (`flow_iteration.Plain`, all steps random, full
fine-tuning) after 20 iterations, on 576 images of held-out prompts. A run's time is its training time at the first of
two successive evaluations at or above the target; evaluations are not timed. Both sides are evaluated every two
iterations with the same noise. Bar: the median over seeds of the best config is at most half of plain's.
"""

import contextlib
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from _common import argument_parser, emit
from flow_iteration import Noise, Plain, group_advantages
from torch import nn

from mmrl.commands.train import train
from mmrl.core.keys import GroupKey, normal
from mmrl.labs.shapes.world import prompts, verify
from mmrl.run_directory.start import new_run

GROUPS, MEMBERS, STEPS, LATENT = 8, 16, 8, (4, 4, 4)
TARGET_ITERATION, EVERY = 20, 2


@dataclass(frozen=True)
class Point:
    """One evaluation of a run."""

    iteration: int
    seconds: float  # of training before it
    accuracy: float


def plain_curve(seed: int, iterations: int) -> list[Point]:
    """Trains the plain loop: Adam 3e-4, all seven steps random at noise level 0.7, one update per iteration."""
    torch.manual_seed(seed)
    plain, train = Plain(STEPS), prompts("train")
    plain.pipeline.transformer.requires_grad_(True)
    optimizer = torch.optim.AdamW(plain.parameters, lr=3e-4, betas=(0.9, 0.99), weight_decay=0)
    curve, seconds = [Point(0, 0.0, accuracy(plain))], 0.0
    for iteration in range(1, iterations + 1):
        started = time.perf_counter()
        plain_iteration(plain, optimizer, [train[int(n)] for n in torch.randperm(len(train))[:GROUPS]])
        seconds += time.perf_counter() - started
        if iteration % EVERY == 0:
            curve.append(Point(iteration, seconds, accuracy(plain)))
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


def accuracy(plain: Plain) -> float:
    """Share of 576 correct images of the held-out prompts, with the noise and the steps of the configs' evaluation."""
    texts, count, right = prompts("held_out"), 8, 0
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


def mmrl_curve(config: str, seed: int, iterations: int | None, threads: int) -> list[Point]:
    """Trains a shipped config as the command line does and reads its metrics."""
    overrides = [f"seed={seed}", f"threads={threads}", f"evaluation.every={EVERY}", "checkpoint.every=0"]
    overrides += ["evaluation.saved_samples=0"] + ([] if iterations is None else [f"iterations={iterations}"])
    curve, seconds = [], 0.0
    with tempfile.TemporaryDirectory() as parent:
        checked, folder = new_run(config, overrides, Path(parent) / "run")
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for JSON lines
            train(checked, folder)
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            numbers = json.loads(line)
            seconds += numbers.get("time/iteration", 0.0)
            if "held_out/score" in numbers:
                curve.append(Point(numbers["iteration"], seconds, numbers["held_out/score"]))
    return curve


def reached(curve: Sequence[Point], target: float) -> Point | None:
    """The first of two successive evaluations at or above the target."""
    for first, second in pairwise(curve):
        if min(first.accuracy, second.accuracy) >= target:
            return first
    return None


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--configs", nargs="+", default=["quickstart", "quickstart_policy_gradient"])
    parser.add_argument("--plain-iterations", type=int, default=40)
    parser.add_argument("--iterations", type=int, help="of mmrl; the config's own by default")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    curves: dict[str, list[list[Point]]] = {}
    for name in ("plain", *options.configs):
        for seed in options.seeds:
            if name == "plain":
                curve = plain_curve(seed, options.plain_iterations)
            else:
                curve = mmrl_curve(name, seed, options.iterations, options.threads)
            curves.setdefault(name, []).append(curve)
            emit("time_to_reward run", name=name, seed=seed, curve=[astuple(point) for point in curve])
    at_target = [point for curve in curves["plain"] for point in curve if point.iteration == TARGET_ITERATION]
    target = statistics.mean(point.accuracy for point in at_target)
    points = {name: [reached(curve, target) for curve in runs] for name, runs in curves.items()}
    median = {name: statistics.median(p.seconds if p else math.inf for p in found) for name, found in points.items()}
    for name, found in points.items():
        share = median[name] / median["plain"]
        emit(
            "time_to_reward",
            name=name,
            seeds=options.seeds,
            target=target,
            seconds=[point and point.seconds for point in found],
            iterations=[point and point.iteration for point in found],
            share_of_plain=share if math.isfinite(share) else None,
            bar=0.5,
        )


if __name__ == "__main__":
    main()
