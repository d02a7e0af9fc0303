"""How much of a slow reward hides behind sampling, in iterations of a lab."""

import argparse
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import median
from typing import ClassVar

import torch
from _common import Clock, emit, trainer_of
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Rollout
from mmrl.scoring.scorer import RewardTerm
from mmrl.training.rollouts import Collector, MemberRequest
from mmrl.training.trainer import Trainer

# As shipped, and with so many prompts that an eighth of them still makes a full batch.
LABS = ["quickstart", "quickstart_gui prompts_per_iteration=64"]


@dataclass
class Waiting:
    """Waits as a server does while others work, then says 0."""

    source: ClassVar[str] = "this benchmark"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()
    batch_size: ClassVar[int | None] = None

    seconds: float = 0.0  # for each sample

    def score(self, batch: RewardBatch) -> Tensor:
        if self.seconds:
            time.sleep(self.seconds * len(batch))
        return torch.zeros(len(batch))


@dataclass(frozen=True)
class TimedCollector(Collector):
    """Adds up what sampling takes."""

    sampling: list[float] = field(default_factory=list)

    def _rollout(self, chunk: Sequence[MemberRequest]) -> Rollout:
        clock = Clock()
        rollout = super()._rollout(chunk)
        self.sampling.append(clock())
        return rollout


@dataclass(frozen=True)
class Spent:
    """Seconds of one iteration."""

    sampling: float
    waiting: float  # of the reward
    collecting: float  # sampling and scoring, as far as they do not overlap
    iteration: float

    @property
    def over_longer(self) -> float:
        """What collecting took over the longer of sampling and the reward."""
        return self.collecting / max(self.sampling, self.waiting)


@dataclass
class Lab:
    """A lab in training, with a reward of weight 0 that waits."""

    trainer: Trainer
    waiting: Waiting
    collector: TimedCollector

    @classmethod
    def of(cls, trainer: Trainer) -> "Lab":
        waiting, collector = Waiting(), trainer.collector
        scorer = replace(collector.scorer, terms=(*collector.scorer.terms, RewardTerm("waiting", waiting, 0.0)))
        parts = {item.name: getattr(collector, item.name) for item in fields(collector)}
        return cls(trainer, waiting, TimedCollector(**parts | {"scorer": scorer}))

    def iterate(self, num_chunks: int, overlap: bool, seconds: float) -> Spent:
        """One iteration whose groups are sampled in chunks, with a reward that takes these seconds in all."""
        groups, progress = self.collector.wanted, self.trainer.progress
        self.waiting.seconds = seconds / (groups * self.collector.group_size)
        self.collector.sampling.clear()
        self.trainer.collector = replace(self.collector, chunk=math.ceil(groups / num_chunks), overlap=overlap)
        clock = Clock()
        metrics = self.trainer._iterate(progress.iteration)
        progress.iteration += 1
        sampling = sum(self.collector.sampling)
        return Spent(sampling, metrics["time/reward/waiting"], metrics["time/rollout"], clock())


@dataclass(frozen=True)
class Turn:
    """Iterations of one number of chunks, one after the other."""

    instant: Spent  # the reward takes no time
    overlapping: Spent  # it takes as long as sampling did in `instant`
    in_turn: Spent  # the same without overlap


def take_turn(lab: Lab, num_chunks: int, is_on_first: bool) -> Turn:
    instant = lab.iterate(num_chunks, overlap=True, seconds=0.0)
    spent = {is_on: lab.iterate(num_chunks, is_on, instant.sampling) for is_on in (is_on_first, not is_on_first)}
    return Turn(instant, spent[True], spent[False])


def measure_overlap(options: argparse.Namespace) -> None:
    """A JSON line for each lab and number of chunks; all numbers of chunks take turns."""
    for words in options.labs:
        with _lab(words, options.threads) as lab:
            groups = lab.collector.wanted
            numbers = sorted({1, *(number for number in options.chunks if number <= groups)})
            rounds = [
                {number: take_turn(lab, number, bool(place % 2)) for number in numbers}
                for place in range(options.rounds + 1)
            ][1:]  # the first one warms up
        for number in numbers:
            _emit(words, number, groups, [(turns[number], turns[1]) for turns in rounds])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--labs", nargs="+", default=LABS, help="for the overlap: a config and its overrides each")
    parser.add_argument("--chunks", nargs="+", type=int, default=[4, 8], help="numbers of them, for the overlap")
    parser.add_argument("--rounds", type=int, default=7, help="of the overlap")


@contextmanager
def _lab(words: str, threads: int) -> Iterator[Lab]:
    config, *overrides = words.split()
    with tempfile.TemporaryDirectory() as folder:
        yield Lab.of(trainer_of(config, [*overrides, f"threads={threads}"], Path(folder)))


def _emit(lab: str, num_chunks: int, groups: int, turns: list[tuple[Turn, Turn]]) -> None:
    """`turns`: those of this number of chunks, each with that of one chunk in the same round."""
    own = [turn for turn, _ in turns]
    emit(
        "overlap",
        lab=lab,
        chunks=num_chunks,
        rollout_groups=math.ceil(groups / num_chunks),
        rounds=len(turns),
        over_longer=round(median(turn.overlapping.over_longer for turn in own), 3),
        expected=round((num_chunks + 1) / num_chunks, 3),
        bar=1.15,
        over_longer_without_overlap=round(median(turn.in_turn.over_longer for turn in own), 3),
        iteration_over_instant=round(median(t.overlapping.iteration / t.instant.iteration for t in own), 3),
        iteration_over_instant_without_overlap=round(median(t.in_turn.iteration / t.instant.iteration for t in own), 3),
        sampling_over_one_chunk=round(median(turn.instant.sampling / one.instant.sampling for turn, one in turns), 3),
        seconds_sampling=round(median(turn.instant.sampling for turn in own), 4),
        seconds_iteration=round(median(turn.instant.iteration for turn in own), 4),
    )
