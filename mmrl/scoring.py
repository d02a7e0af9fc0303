"""Rewards to scores: batching, what a failed score means, and scoring while the next chunk is drawn."""

import logging
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import torch
from torch import Tensor

from mmrl.contracts import ConfigError, Placement, Prepared, Reward, RewardBatch, RunError
from mmrl.data import Outputs, Rollout, Scores
from mmrl.numerics import group_std
from mmrl.reward_batches import check_needs, pack, reward_batch, select, units_of
from mmrl.totals import check_weight, without_too_large

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RewardTerm:
    """One reward of a run; a reward of weight 0 is only watched: its failures leave the samples valid."""

    name: str  # in the metrics
    reward: Reward
    weight: float = 1.0


@dataclass(frozen=True)
class Judgement:
    """Scores, and why some are missing."""

    scores: Scores  # values are NaN exactly where that reward could not judge
    first_failures: tuple[str | None, ...]  # R: the first failure of each reward in words

    @classmethod
    def join(cls, parts: "Sequence[Judgement]") -> "Judgement":
        """One judgement of all samples of the parts, in order."""
        failures = zip(*(part.first_failures for part in parts), strict=True)
        firsts = tuple(next((message for message in each if message), None) for each in failures)
        return cls(Scores.join([part.scores for part in parts]), firsts)


@dataclass(frozen=True)
class Scorer:
    """Asks every reward about every sample, and decides what it means when one cannot answer.

    A reward that raises is asked again about each sample alone (each group or episode, if it judges those), to find
    the ones that it cannot judge. These, and NaN or infinity, are NaN in the scores and make the sample invalid: it
    takes no part in its group. `check` fails the run when an iteration has too many of them.
    """

    terms: tuple[RewardTerm, ...]
    max_failed_share: float = 0.1  # of the samples of an iteration, in [0, 1]
    _outside: set[str] = field(default_factory=set, init=False, compare=False, repr=False)  # rewards warned of

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names):
            raise ConfigError(f"a run needs at least one reward, each with a name of its own, got {list(self.names)}")
        for term in self.terms:
            check_weight(term.name, term.weight)
        if not 0 <= self.max_failed_share <= 1:
            raise ConfigError(f"max_failed_share must be in [0, 1], got {self.max_failed_share}")

    @property
    def names(self) -> tuple[str, ...]:
        """R names, in the order of the columns of the scores."""
        return tuple(term.name for term in self.terms)

    def prepare(self, placement: Placement) -> None:
        """Loads the weights of the rewards that have some."""
        for term in self.terms:
            if hasattr(term.reward, "prepare"):
                cast(Prepared, term.reward).prepare(placement)

    def score(self, rollout: Rollout, iteration: int) -> Scores:
        """The scores of a rollout that is a whole iteration: `judge`, then `check`."""
        judgement = self.judge(rollout, iteration)
        self.check(judgement.scores, judgement.first_failures)
        return judgement.scores

    @torch.no_grad()
    def judge(self, rollout: Rollout, iteration: int) -> Judgement:
        """What the rewards say of the samples of a rollout, or of a chunk of one that holds whole groups.

        Raises:
            ConfigError: a reward needs what the rollout does not have, or returns a wrong shape or type.
        """
        everyone = reward_batch(rollout, iteration)
        answers = [_judge(term, everyone) for term in self.terms]
        for term, (column, _) in zip(self.terms, answers, strict=True):
            self._warn_outside(term, column)
        values = torch.stack([column for column, _ in answers], 1)  # [B, R]
        counts = torch.tensor([term.weight != 0 for term in self.terms])
        scores = replace(
            self.empty().scores,
            values=values,
            valid=~(values.isnan() & counts).any(1) & ~rollout.is_control,
            group=rollout.group,
            episode=rollout.episode,
            turn=rollout.turn,
            anchor=rollout.anchor,
            is_control=rollout.is_control,
        )
        return Judgement(*without_too_large(scores, [failure for _, failure in answers]))

    def _warn_outside(self, term: RewardTerm, values: Tensor) -> None:
        """Says once of each reward that a score [B] lies outside of the range that it states; the score stays."""
        (low, high), near = term.reward.range, 1e-4
        outside = values[(values < low - near) | (values > high + near)]  # never NaN
        if len(outside) and term.name not in self._outside:
            self._outside.add(term.name)
            log.warning(
                "reward %r scored %.6g, outside of the range %g to %g that it states", term.name, outside[0], low, high
            )

    def empty(self) -> Judgement:
        """The judgement of no sample, as a process without prompts has it."""
        none, num_rewards = torch.zeros(0, dtype=torch.int64), len(self.terms)
        scores = Scores(
            values=torch.zeros(0, num_rewards),
            names=self.names,
            weights=tuple(term.weight for term in self.terms),
            valid=none.bool(),
            group=none,
            episode=none,
            turn=none,
            granularities=tuple(term.reward.granularity for term in self.terms),
        )
        return Judgement(scores, (None,) * num_rewards)

    def check(self, scores: Scores, first_failures: Sequence[str | None] = ()) -> None:
        """Raises RunError when too many samples of an iteration, those of all processes together, failed."""
        num_failed, num_samples = int(scores.has_failed.sum()), int((~scores.is_control).sum())
        if num_failed <= self.max_failed_share * num_samples:
            return
        pairs = zip(self.terms, first_failures, strict=False)
        known = [message for term, message in pairs if message and term.weight != 0]
        first = f"; first failure: {known[0]}" if known else ""
        raise RunError(
            f"{num_failed} of {num_samples} samples could not be judged, max_failed_share allows"
            f" {self.max_failed_share:.0%}{first}"
        )

    def score_in_graph(self, rollout: Rollout, iteration: int, outputs: Outputs, rows: Tensor) -> Tensor:
        """Weighted sum of the rewards [N] of media made anew for the samples `rows` [N], with their gradient.

        Raises:
            ConfigError: a reward that counts is not differentiable.
            RunError: a reward cannot judge; inside a graph there is no sample to leave out.
        """
        batch = replace(select(reward_batch(rollout, iteration), rows), outputs=outputs)
        weighted = []
        for term in self.terms:
            if term.weight == 0:
                continue
            if not term.reward.differentiable:
                raise ConfigError(f"reward {term.name!r} is not differentiable; this loss needs gradients from rewards")
            check_needs(term.name, term.reward, batch)
            values, failure = _ask(term, batch)
            if values is None or failure:
                raise RunError(f"a reward whose gradient is needed cannot judge: {failure}")
            weighted.append(term.weight * values)
        if not weighted:
            raise ConfigError("this loss needs gradients from rewards, and all rewards have weight 0")
        return torch.stack(weighted).sum(0)


class ScoringQueue:
    """Scores chunks of a rollout on a thread of its own while the next chunk is drawn.

    A context manager: on leaving, the chunk in work is finished, the waiting ones are dropped, the thread ends.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scoring")
        self._waiting: list[Future[Judgement]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._worker.shutdown(wait=True, cancel_futures=True)

    def submit(self, chunk: Rollout, iteration: int) -> None:
        """Queues a chunk of whole groups; returns at once."""
        self._waiting.append(self._worker.submit(self._scorer.judge, chunk, iteration))

    def join(self) -> Judgement:
        """Waits for all chunks since the last join, maybe none: one judgement, in the order of their submission.

        Raises what the first failed chunk raised; the chunks behind it are dropped.
        """
        chunks, self._waiting = self._waiting, []
        try:
            return Judgement.join([self._scorer.empty(), *(chunk.result() for chunk in chunks)])
        finally:
            for chunk in chunks:
                chunk.cancel()


def degenerate_groups(values: Tensor, group: Tensor, valid: Tensor, min_spread: float = 0.0) -> Tensor:
    """[B] bool: samples of groups that teach nothing, with a standard deviation of at most `min_spread` (0: all equal).

    A group with fewer than two valid members is one of them.

    Args:
        values: [B]; those of invalid samples may be NaN. group: [B] integer ids. valid: [B] bool.
    """
    return group_std(values, group, valid) <= min_spread


def score_metrics(scores: Scores, min_spread: float = 0.0) -> dict[str, float]:
    """Mean, standard deviation and failures of the total and of each reward, over the samples that could be judged.

    Where nothing could be judged there is no mean, and its key is left out.
    """
    metrics = {
        **mean_and_std("reward", scores.total, scores.share),
        "reward/failed": float(scores.has_failed.sum()),
        "groups/degenerate": _share(
            degenerate_groups(scores.total, scores.group, scores.valid, min_spread), scores.group
        ),
    }
    for name, values in zip(scores.names, scores.values.unbind(1), strict=True):
        judged = ~values.isnan() & ~scores.is_control
        metrics |= mean_and_std(f"reward/{name}", values, scores.share_of(judged))
        metrics[f"reward/{name}/failed"] = float((values.isnan() & ~scores.is_control).sum())
        constant = degenerate_groups(values, scores.group, judged)
        metrics[f"reward/{name}/constant_groups"] = _share(constant, scores.group)
    return metrics


def mean_and_std(name: str, values: Tensor, share: Tensor) -> dict[str, float]:
    """Mean and standard deviation of `values` [B], each counted by its `share` [B]; nothing where all shares are 0."""
    counted = share > 0
    values, share = values[counted].double(), share[counted] / share.sum().clamp(min=1e-300)
    if not len(values):
        return {}
    mean = (values * share).sum()
    return {f"{name}/mean": float(mean), f"{name}/std": float(((values - mean).square() * share).sum().sqrt())}


def _share(member_of: Tensor, group: Tensor) -> float:
    """Share of the groups [0, 1] whose members are marked."""
    return len(set(group[member_of].tolist())) / max(1, len(set(group.tolist())))


def _judge(term: RewardTerm, everyone: RewardBatch) -> tuple[Tensor, str | None]:
    """Values [B] of one reward, NaN where it cannot judge, and its first failure."""
    check_needs(term.name, term.reward, everyone)
    values, first = torch.full((len(everyone),), torch.nan), None
    for units in pack(units_of(term.reward, everyone), term.reward.batch_size):
        answer, failure = _judge_units(term, everyone, units)
        values[torch.cat(units)] = answer
        first = first or failure
    return values, first


def _judge_units(term: RewardTerm, everyone: RewardBatch, units: list[Tensor]) -> tuple[Tensor, str | None]:
    """Values of the samples of some units, in their order: asked together, and if that fails each unit alone."""
    rows = torch.cat(units)
    answer, failure = _ask(term, select(everyone, rows))
    if answer is not None:
        return answer.cpu(), failure
    if len(units) == 1:
        return torch.full((len(rows),), torch.nan), failure
    alone = [_judge_units(term, everyone, [unit]) for unit in units]
    return torch.cat([values for values, _ in alone]), next((message for _, message in alone if message), None)


def _place(error: BaseException, reward: Reward) -> str:
    """Where it was raised, in words: the last line of the reward's own file, else the last of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = getattr(sys.modules.get(type(reward).__module__), "__file__", None)
    chosen = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1])
    return f" (at {Path(chosen.filename).name}:{chosen.lineno})"


def _ask(term: RewardTerm, batch: RewardBatch) -> tuple[Tensor | None, str | None]:
    """One call of a reward: its scores [B], NaN where they are not finite; None where it raised; and the failure.

    The only place that catches what a reward raises: any Exception means that it cannot judge this batch, whatever
    library it came from, and so does an attempt to end the process. Our own two errors stay what they are; Ctrl-C ends.
    """
    try:
        answer = term.reward.score(batch)
    except (ConfigError, RunError):
        raise
    except (Exception, SystemExit) as error:
        return None, f"{term.name}: {type(error).__name__}: {error}{_place(error, term.reward)}"
    if not isinstance(answer, Tensor) or answer.shape != (len(batch),) or answer.dtype != torch.float32:
        got = f"{answer.dtype} {list(answer.shape)}" if isinstance(answer, Tensor) else type(answer).__name__
        raise ConfigError(f"reward {term.name!r} must return a torch.float32 tensor [{len(batch)}], got {got}")
    bad = ~answer.isfinite()
    failure = f"{term.name}: returned {float(answer[bad][0])}" if bad.any() else None
    return torch.where(bad, torch.nan, answer), failure
