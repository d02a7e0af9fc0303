"""Selective sample replay: samples of earlier iterations in the place of those that teach nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmrl.core.config import ReplaySettings
from mmrl.core.contracts import Advantage, ConfigError, LossBatch, Sampler
from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import PROMPT_INDEX_BITS, GroupKey, generator
from mmrl.prompts.stream import PromptStream
from mmrl.scoring.metrics import advantages_of, plain_total
from mmrl.training.checkpoint import flatten_records, restore_records
from mmrl.training.processes import Processes
from mmrl.training.rollouts import Collected

FIRST_REPLAY_INDEX = 1 << (PROMPT_INDEX_BITS - 1)  # of bundles of replayed samples: no run takes so many prompts


@runtime_checkable
class Replayable(Protocol):
    """A policy whose samples can be kept beyond their iteration."""

    def taken(self, rollout: Rollout, row: int) -> dict[str, Tensor]:
        """Returns what a sample is evaluated again from, with its log-probs: tensors of one dimension, on the CPU."""
        ...

    def replayed(
        self, prompts: Sequence[Prompt], samples: Sequence[Mapping[str, Tensor]], keys: Sequence[GroupKey], plan: Any
    ) -> Rollout:
        """Returns a rollout of taken samples, one per prompt, sampled by plans like `plan`; makes no network call."""
        ...


@dataclass(frozen=True)
class Taken:
    """A sample in the buffer."""

    place: tuple[int, int]  # of its prompt: the set of the stream, and the number in it
    advantage: float  # not 0
    score: float  # its total
    sample: Mapping[str, Tensor]  # see `Replayable.taken`


@dataclass(frozen=True)
class Refilled:
    """The batch of an iteration without the samples that teach nothing, and with replayed ones."""

    rollout: Rollout | None
    batch: LossBatch | None
    prompt_indices: list[int]  # to learn from, those of the replayed ones among them
    num_replayed: int  # on all processes
    metrics: dict[str, float]


@dataclass
class Replay:
    """Selective sample replay: Wang et al. 2025, "VL-Rethinker", arXiv 2504.08837, section 3.

    Samples with advantage 0 leave the batch, but for fully correct ones up to `correct` times the number of the others.
    The samples that are then missing of `wanted` are chosen from the buffer of earlier iterations, with replacement and
    in proportion to |advantage|^alpha, at most as many as the buffer holds. Then the samples of the iteration with an
    advantage go into the buffer, and the oldest beyond `capacity` leave. All processes hold the same buffer. While it
    is empty the batch is unchanged.
    """

    settings: ReplaySettings
    policy: Any  # a Modality that is Replayable
    sampler: Sampler
    prompts: PromptStream
    processes: Processes
    advantage: Advantage
    seed: int
    bundle: int  # replayed samples that go through minibatches together, as a group does
    wanted: int  # samples of an iteration
    buffer: list[Taken] = field(default_factory=list)  # the oldest first
    _places: dict[int, tuple[int, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sets = enumerate(self.prompts.sets)
        self._places = {id(prompt): (number, n) for number, one in sets for n, prompt in enumerate(one)}

    def __call__(
        self, collected: Collected, rollout: Rollout | None, batch: LossBatch | None, iteration: int
    ) -> Refilled:
        """Returns the refilled batch of `iteration`. Every process must call it.

        `rollout`: the collected one; its log-probs may have been recomputed.
        """
        advantages = self._advantages(collected)
        may_teach = is_learned_from(collected)
        teaches = may_teach & (advantages != 0)
        stays = teaches | fully_correct(collected, may_teach & ~teaches, self.settings, int(teaches.sum()))
        stays = stays if self.buffer else may_teach
        missing = max(0, self.wanted - int(stays.sum()))
        chosen = resample([taken.advantage for taken in self.buffer], missing, self.settings.alpha,
                             generator(self.seed, "replay", iteration))  # fmt: skip
        bundles = [
            (GroupKey(self.seed, iteration, FIRST_REPLAY_INDEX + first), chosen[first : first + self.bundle])
            for first in range(0, len(chosen), self.bundle)
        ]
        again = self._rollout(self.processes.share(bundles))
        if batch is not None:
            own = stays[collected.local_rows].to(batch.weight.device)
            own = own if batch.is_imitated is None else own | batch.is_imitated
            batch = replace(batch, weight=batch.weight * own[:, None])
        rollouts = [part for part in (rollout, again[0]) if part is not None]
        parts = [part for part in (batch, again[1]) if part is not None]
        self._take(collected, rollout, advantages, teaches)
        return Refilled(
            rollout=Rollout.join(rollouts) if rollouts else None,
            batch=_joined(parts) if parts else None,
            prompt_indices=collected.kept + [key.prompt_index for key, _ in bundles],
            num_replayed=len(chosen),
            metrics={
                "replay/samples": float(len(chosen)),
                "replay/left_out": float((may_teach & ~stays).sum()),
                "replay/size": float(len(self.buffer)),
            },
        )

    def _advantages(self, collected: Collected) -> Tensor:
        """Returns the advantages [B] of all processes' samples. Raises ConfigError for several per sample."""
        advantages = advantages_of(collected.scores, self.advantage, collected.paths)
        if advantages.dim() == 2 and advantages.shape[1] != 1:
            raise ConfigError(
                "replay keeps one advantage for each sample, and this advantage has one for each decision"
            )
        return advantages.flatten()

    def _rollout(self, bundles: Sequence[tuple[GroupKey, list[int]]]) -> tuple[Rollout | None, LossBatch | None]:
        """Returns the rollout and the batch of the samples of some bundles; None twice where this process has none."""
        own = [(key, self.buffer[row]) for key, rows in bundles for row in rows]
        if not own:
            return None, None
        keys, taken = [key for key, _ in own], [one for _, one in own]
        prompts = [self.prompts.sets[one.place[0]][one.place[1]] for one in taken]
        plan = self.sampler.plan(self.policy, keys[0], 1)
        rollout: Rollout = self.policy.replayed(prompts, [one.sample for one in taken], keys, plan)
        advantages = torch.tensor([one.advantage for one in taken])[:, None]
        scores = torch.tensor([one.score for one in taken])
        batch = LossBatch(advantages, torch.ones_like(advantages), rollout.group, scores)
        return rollout, _moved(batch, self.processes.device)

    def _take(self, collected: Collected, rollout: Rollout | None, advantages: Tensor, teaches: Tensor) -> None:
        """Puts the samples of an iteration that teach something into the buffer, in the order of the scores."""
        own: list[tuple[int, Taken]] = []
        for row, number in enumerate(collected.local_rows.tolist()):
            assert rollout is not None, "a process with samples has a rollout"
            if teaches[number] and bool((rollout.blocks[0].edge[row] >= 0).any()):
                place = self._places[id(rollout.prompts[int(rollout.prompt[row])])]
                score = float(collected.scores.total[number])
                sample = self.policy.taken(rollout, row)
                own.append((number, Taken(place, float(advantages[number]), score, sample)))
        everyone = sorted(self.processes.gather(own), key=lambda pair: pair[0])
        self.buffer = [*self.buffer, *(taken for _, taken in everyone)][-self.settings.capacity :]

    def tensors(self) -> dict[str, Tensor]:
        """Returns the buffer as tensors, for a checkpoint."""
        tensors = {
            "place": torch.tensor([one.place for one in self.buffer], dtype=torch.int64).view(-1, 2),
            "advantage": torch.tensor([one.advantage for one in self.buffer], dtype=torch.float64),
            "score": torch.tensor([one.score for one in self.buffer], dtype=torch.float64),
        }
        return tensors | flatten_records([one.sample for one in self.buffer], "sample")

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Restores the buffer of a checkpoint."""
        numbers = (saved[name].tolist() for name in ("place", "advantage", "score"))
        self.buffer = [
            Taken((place[0], place[1]), advantage, score, sample)
            for place, advantage, score, sample in zip(*numbers, restore_records(saved, "sample"), strict=True)
        ]


def is_learned_from(collected: Collected) -> Tensor:
    """Returns [B] bool: the samples of the kept groups that could be judged."""
    return collected.scores.valid & torch.isin(
        collected.scores.prompt_index, torch.tensor(collected.kept, dtype=torch.int64)
    )


def fully_correct(collected: Collected, among: Tensor, settings: ReplaySettings, others: int) -> Tensor:
    """Returns [B] bool: the first of `among` [B] with totals above `correct_above`, at most `correct * others`."""
    is_good = among & (plain_total(collected.scores) > settings.correct_above)
    return is_good & (is_good.cumsum(0) <= int(settings.correct * others))


def resample(advantages: Sequence[float], count: int, alpha: float, source: torch.Generator) -> list[int]:
    """Returns the rows of `count` samples, at most as many as there are, chosen with replacement.

    P(j) = |A_j|^alpha / sum_k |A_k|^alpha; alpha 0 makes them all alike.
    """
    if not advantages or not count:
        return []
    chances = torch.tensor(advantages, dtype=torch.float64).abs() ** alpha
    number = min(count, len(advantages))
    rows: list[int] = torch.multinomial(chances, number, replacement=True, generator=source).tolist()
    return rows


def _moved(batch: LossBatch, device: torch.device) -> LossBatch:
    return LossBatch(
        advantages=batch.advantages.to(device),
        weight=batch.weight.to(device),
        group=batch.group.to(device),
        scores=batch.scores.to(device),
    )


def _joined(parts: Sequence[LossBatch]) -> LossBatch:
    imitated = [torch.zeros_like(p.group, dtype=torch.bool) if p.is_imitated is None else p.is_imitated for p in parts]
    return LossBatch(
        advantages=torch.cat([part.advantages for part in parts]),
        weight=torch.cat([part.weight for part in parts]),
        group=torch.cat([part.group for part in parts]),
        scores=torch.cat([part.scores for part in parts]),
        is_imitated=torch.cat(imitated),
    )
