"""The scorer: from rewards to scores, what a failed reward means, and scoring while the next chunk is sampled."""

import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from mmrl.core import plugins
from mmrl.core.config import Plugin, ScoringSettings, label_of
from mmrl.core.contracts import (
    ConfigError,
    Fitted,
    Mix,
    Placement,
    Prepared,
    Reward,
    RewardBatch,
    RunError,
    Segmented,
    Spending,
)
from mmrl.core.data import Outputs, Rollout, Scores
from mmrl.core.declarations import MixDeclaration
from mmrl.core.dense import DENSE
from mmrl.core.reward_batches import Demands, check_needs, needs_of_gradient, on_device, reward_batch, select
from mmrl.core.rewards import Thought
from mmrl.core.schedules import Schedule, ends_of, value_at
from mmrl.scoring.answer_metrics import formats_of
from mmrl.scoring.calls import Answer, call_once, call_reward
from mmrl.scoring.metrics import as_wholes, too_many_failed
from mmrl.scoring.placed_rewards import PlacedReward, is_placeable
from mmrl.scoring.properties import Properties, join_properties, properties_of
from mmrl.scoring.streams import SideStream
from mmrl.system.errors import UnjudgedError, raised
from mmrl.system.time_limits import Patience, Workers

BESIDE = ("weight", "label", "device")  # fields of a reward's section that are not the reward's own
LARGEST = 1e18  # of a sum or a weight: its square, which a standard deviation needs, is still a float32


def check_weight(name: str, weight: float) -> None:
    """Raises ConfigError for the weight of a reward that float32 cannot compute with."""
    if not math.isfinite(weight) or abs(weight) > LARGEST:
        raise ConfigError(f"the weight of reward {name!r} must be a finite number of at most {LARGEST:g}, got {weight}")


def without_too_large(scores: Scores, failures: Sequence[str | None]) -> tuple[Scores, tuple[str | None, ...]]:
    """Returns the scores with samples of too large a sum as failed ones, and each reward's first failure."""
    too_large = scores.valid & ~(scores.total.abs() <= LARGEST)
    if not too_large.any():
        return scores, tuple(failures)
    too_large_sum = f"the weighted sum of the rewards is {float(scores.total[too_large][0]):g}"
    counted = next((number for number, weight in enumerate(scores.weights) if weight != 0), 0)
    firsts = [failure or (too_large_sum if number == counted else None) for number, failure in enumerate(failures)]
    return replace(scores, valid=scores.valid & ~too_large), tuple(firsts)


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RewardTerm:
    """One reward of a run; a reward of weight 0 is only logged: its failures leave the samples valid."""

    name: str  # in the metrics
    reward: Reward
    weight: float | Schedule = 1.0
    device: torch.device | None = None  # of its network; None: that of the process

    def weight_at(self, iteration: int) -> float:
        """Returns the weight at an iteration."""
        return value_at(self.weight, iteration)

    @property
    def ends(self) -> tuple[float, float]:
        """Returns the weights at the first and the last iteration."""
        return ends_of(self.weight)

    @property
    def smallest_weight(self) -> float:
        """Returns the smallest weight of all iterations."""
        return min(self.ends)

    @property
    def counts(self) -> bool:
        """Returns whether the weight is other than 0 at some iteration."""
        return isinstance(self.weight, Schedule) or self.weight != 0


@dataclass(frozen=True)
class Judgement:
    """The scores of a batch, and why some of them are missing."""

    scores: Scores  # values are NaN exactly where that reward could not judge
    first_failures: tuple[str | None, ...]  # R: the first failure of each reward in words
    seconds: tuple[float, ...]  # R: what the calls of each reward took
    properties: Properties = field(default_factory=dict)  # [B] by name: what the samples are like
    formats: tuple[str | None, ...] = ()  # B, or none where they are not measured: of the answers, see `formats_of`

    def without_examples(self) -> "Judgement":
        """Returns the judgement without what fitted rewards would learn from, for an evaluation."""
        nothing = {name: torch.zeros(len(rows), 0) for name, rows in self.scores.examples.items()}
        return replace(self, scores=replace(self.scores, examples=nothing))

    @classmethod
    def join(cls, parts: "Sequence[Judgement]") -> "Judgement":
        """Returns one judgement of all samples of the parts, in order."""
        failures = zip(*(part.first_failures for part in parts), strict=True)
        firsts = tuple(next((message for message in each if message), None) for each in failures)
        seconds = tuple(map(sum, zip(*(part.seconds for part in parts), strict=True)))
        counts = [len(part.scores.group) for part in parts]
        properties = join_properties([part.properties for part in parts], counts)
        pairs = zip(parts, counts, strict=True)
        formats = tuple(name for part, count in pairs for name in part.formats or (None,) * count)
        return cls(Scores.join([part.scores for part in parts]), firsts, seconds, properties, formats)

    def select(self, rows: Tensor) -> "Judgement":
        """Returns the judgement of the samples `rows` [N] int64, in their order; failures and seconds stay."""
        properties = {name: values[rows] for name, values in self.properties.items()}
        formats = tuple(self.formats[row] for row in rows.tolist()) if self.formats else ()
        return replace(self, scores=self.scores.select(rows), properties=properties, formats=formats)


@dataclass(frozen=True)
class Scorer:
    """The rewards of a run: calls each of them for every sample, and decides what a failure means.

    A reward that raises is called again for each sample alone (each group or episode, if it judges those), to locate
    the samples that it cannot judge. These, and NaN or infinity, are NaN in the scores and make the sample invalid:
    neither the sample nor the other turns of its episode take part in the group. `check` fails the run when an
    iteration has too many failures.

    Rewards that ask a server or run in actors are called at the same time as the others, which are called one after the
    other. A call that takes longer than `patience` allows ends the run.
    """

    terms: tuple[RewardTerm, ...]
    max_failed_share: float = 0.1  # of the episodes of an iteration, in [0, 1]
    mix: Mix | None = None  # None: the weighted sum
    patience: Patience = field(default_factory=Patience, compare=False, repr=False)
    _outside: set[str] = field(default_factory=set, init=False, compare=False, repr=False)  # rewards warned of
    _failed: set[str] = field(default_factory=set, init=False, compare=False, repr=False)  # rewards warned of

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names):
            raise ConfigError(
                f"a run needs at least one reward, each with a name of its own (its `label`), got {list(self.names)}"
            )
        for term in self.terms:
            for weight in term.ends:
                check_weight(term.name, weight)
        if self.mix is not None:
            self._check_mix(self.mix)
        if not 0 <= self.max_failed_share <= 1:
            raise ConfigError(f"max_failed_share must be in [0, 1], got {self.max_failed_share}")

    def _check_mix(self, mix: Mix) -> None:
        required = MixDeclaration.of(mix).requires_rewards
        mixed = {term.name: term for term in self.terms if term.counts or term.name in required}
        try:
            mix.check(
                {name: term.reward.range for name, term in mixed.items()},
                {name: term.smallest_weight for name, term in mixed.items()},
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the R rewards, in the order of the columns of the scores."""
        return tuple(term.name for term in self.terms)

    def changing_weights(self, iteration: int) -> dict[str, float]:
        """Returns as metrics the weights that change over a run."""
        changing = [term for term in self.terms if isinstance(term.weight, Schedule)]
        return {f"reward/{term.name}/weight": term.weight_at(iteration) for term in changing}

    def spent(self) -> dict[str, float]:
        """Returns as metrics what rewards have used so far in this process."""
        return {
            f"reward/{term.name}/{key}": value
            for term in self.terms
            if isinstance(term.reward, Spending)
            for key, value in term.reward.spent().items()
        }

    def fit(self) -> dict[str, float]:
        """Returns as metrics how well the rewards that learn from samples fit."""
        return {
            f"reward/{term.name}/{key}": value
            for term in self.terms
            if isinstance(term.reward, Fitted)
            for key, value in term.reward.fit().items()
        }

    @property
    def needs_of_gradient(self) -> frozenset[str]:
        """Returns what the rewards that count need of outputs whose gradient is computed."""
        return frozenset().union(*(needs_of_gradient(term.reward) for term in self.terms if term.counts))

    @property
    def needs(self) -> frozenset[str]:
        """Returns what at least one reward needs."""
        return frozenset().union(*(term.reward.needs for term in self.terms))

    @property
    def demands(self) -> Demands:
        """Returns what the rewards need of prompts."""
        return Demands(tuple((term.name, term.reward) for term in self.terms))

    def prepare(self, placement: Placement) -> None:
        """Loads the weights of the rewards that have some."""
        for term in self.terms:
            if isinstance(term.reward, Prepared):
                own = placement if term.device is None else replace(placement, device=term.device)
                term.reward.prepare(own)

    def score(self, rollout: Rollout, iteration: int) -> Scores:
        """Returns the scores of a rollout that is a whole iteration: `judge`, then `check`."""
        judgement = self.judge(rollout, iteration)
        self.check(judgement.scores, judgement.first_failures)
        return judgement.scores

    @torch.no_grad()
    def judge(
        self, rollout: Rollout, iteration: int, thought: Thought | None = None, *, has_properties: bool = True
    ) -> Judgement:
        """Returns the judgement of a rollout, or of a chunk of one that holds whole groups.

        Args:
            thought: what the policy thinks of the answers, for the rewards that need it.
            has_properties: measures what the samples are like, which an evaluation does not report.
        Raises:
            ConfigError: a reward needs what the rollout does not have, or returns a wrong shape or type.
            HangError: a call of a reward takes too long.
        """
        everyone = reward_batch(rollout, iteration, thought)
        answers = self._answers(everyone)
        for term, answer in zip(self.terms, answers, strict=True):
            self._warn_outside(term, answer.values if answer.dense is None else answer.dense)
        values = torch.stack([answer.values for answer in answers], 1)  # [B, R]
        weights = tuple(term.weight_at(iteration) for term in self.terms)
        required = MixDeclaration.of(self.mix).requires_rewards
        counts = torch.tensor(
            [weight != 0 or name in required for name, weight in zip(self.names, weights, strict=True)]
        )
        scores = replace(
            self.empty().scores,
            values=values,
            weights=weights,
            valid=~(values.isnan() & counts).any(1) & ~rollout.is_control,
            group=rollout.group,
            episode=rollout.episode,
            turn=rollout.turn,
            anchor=rollout.anchor,
            is_control=rollout.is_control,
            dense={name: a.dense for name, a in zip(self.names, answers, strict=True) if a.dense is not None},
            examples={
                term.name: torch.zeros(len(everyone), 0) if answer.examples is None else answer.examples
                for term, answer in zip(self.terms, answers, strict=True)
                if isinstance(term.reward, Fitted)
            },
        )
        scores, failures = without_too_large(scores, [answer.failure for answer in answers])
        seconds = tuple(answer.seconds for answer in answers)
        judgement = Judgement(as_wholes(scores), failures, seconds)
        if not has_properties:
            return judgement
        return replace(judgement, properties=properties_of(rollout), formats=formats_of(rollout))

    def _answers(self, everyone: RewardBatch) -> list[Answer]:
        """Returns the answer of each reward."""
        remote = [t for t in self.terms if "service" in t.reward.needs or isinstance(t.reward, PlacedReward)]
        patience = self.patience
        with Workers(len(remote), "rewards", patience) as workers:
            waiting = {
                term.name: workers.submit(call_reward, term.name, term.reward, everyone, patience) for term in remote
            }
            here = {
                t.name: call_reward(t.name, t.reward, on_device(everyone, t.device), patience)
                for t in self.terms
                if t.name not in waiting
            }
            return [here[name] if name in here else patience.result(waiting[name]) for name in self.names]

    def _warn_outside(self, term: RewardTerm, values: Tensor) -> None:
        """Warns, once for each reward, of a score [B] or [B, K] outside of the reward's range; the score is kept."""
        (low, high), near = term.reward.range, 1e-4
        outside = values[(values < low - near) | (values > high + near)]  # never NaN
        if len(outside) and term.name not in self._outside:
            self._outside.add(term.name)
            log.warning(
                "reward %r scored %.6g, outside of the range %g to %g that it states", term.name, outside[0], low, high
            )

    def empty(self) -> Judgement:
        """Returns the judgement of no sample, for a process without prompts."""
        none, num_rewards = torch.zeros(0, dtype=torch.int64), len(self.terms)
        scores = Scores(
            values=torch.zeros(0, num_rewards),
            names=self.names,
            weights=tuple(term.weight_at(0) for term in self.terms),
            valid=none.bool(),
            group=none,
            episode=none,
            turn=none,
            granularities=tuple(term.reward.granularity for term in self.terms),
            mix=self.mix,
            dense={term.name: torch.zeros(0, 0) for term in self.terms if term.reward.granularity in DENSE},
            examples={term.name: torch.zeros(0, 0) for term in self.terms if isinstance(term.reward, Fitted)},
        )
        return Judgement(scores, (None,) * num_rewards, (0.0,) * num_rewards)

    def check(self, scores: Scores, first_failures: Sequence[str | None] = (), where: str = "") -> None:
        """Raises UnjudgedError when too many episodes of an iteration, those of all processes together, failed.

        `where`: how the message begins.
        """
        too_many = too_many_failed(scores, self.max_failed_share)
        if too_many is None:
            self._warn_failed(first_failures)
            return
        pairs = zip(self.terms, first_failures, strict=False)
        known = next((message for term, message in pairs if message and term.counts), None)
        first = f"; first failure: {known}" if known else ""
        raise UnjudgedError(f"{where}{too_many}{first}") from raised(known)

    def _warn_failed(self, first_failures: Sequence[str | None]) -> None:
        """Warns, once for each reward, of why it could not judge the first sample that it failed on."""
        for term, failure in zip(self.terms, first_failures, strict=False):
            if failure and term.name not in self._failed:
                self._failed.add(term.name)
                kept = "left out of its group" if term.counts else "without this score"
                log.warning("a sample could not be judged, and is %s, as further ones are: %s", kept, failure)

    def score_in_graph(self, rollout: Rollout, outputs: Outputs, rows: Tensor, iteration: int) -> Tensor:
        """Returns the weighted sum of the rewards [N] for media made anew for the samples `rows` [N], with its
        gradient.

        Raises:
            ConfigError: a reward that counts is not differentiable.
            RunError: a reward cannot judge; inside a graph there is no sample to leave out.
        """
        batch = replace(select(reward_batch(rollout, iteration), rows), outputs=outputs)
        weighted = []
        for term in self.terms:
            weight = term.weight_at(iteration)
            if weight == 0:
                continue
            if not term.reward.differentiable:
                raise ConfigError(f"reward {term.name!r} is not differentiable; this loss needs gradients from rewards")
            check_needs(term.name, term.reward, batch, needs_of_gradient(term.reward))
            answer, failure = call_once(term.name, term.reward, on_device(batch, term.device), self.patience)
            if answer is None or failure:
                raise RunError(f"a reward whose gradient is needed cannot judge: {failure}") from raised(failure)
            weighted.append(weight * answer.values)
        if not weighted:
            raise ConfigError("this loss needs gradients from rewards, and all rewards have weight 0")
        return torch.stack([values.to(weighted[0].device) for values in weighted]).sum(0)


class ScoringQueue:
    """A thread that scores chunks of a rollout while the next chunk is sampled.

    It is a context manager: on leaving, the chunk in work is finished, the waiting ones are dropped, the thread ends.
    After Ctrl-C, and where a reward hangs, the chunk in work is left behind instead.
    """

    def __init__(self, scorer: Scorer, device: torch.device | None = None) -> None:
        """Makes the queue; `device`: of the process, on which chunks are sampled."""
        self._scorer = scorer
        self._stream = SideStream(device)
        self._worker = Workers(1, "scoring", scorer.patience)
        self._waiting: list[Future[Judgement]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._worker.__exit__(kind, error, traceback)

    def submit(self, chunk: Rollout, iteration: int, thought: Thought | None = None) -> None:
        """Queues a chunk of whole groups, as for `Scorer.judge`.

        Waits for the chunk before, so that no more than one is held beside the next. What that chunk raised, or that it
        takes too long, is raised by `join`.
        """
        if self._waiting:
            wait(self._waiting[-1:], timeout=self._scorer.patience.seconds)
        sampled = self._stream.mark()
        self._waiting.append(self._worker.submit(self._judge, chunk, iteration, thought, sampled))

    def _judge(self, chunk: Rollout, iteration: int, thought: Thought | None, sampled: object) -> Judgement:
        with self._stream.behind(sampled):
            return self._scorer.judge(chunk, iteration, thought)

    def join(self) -> Judgement:
        """Returns one judgement of all chunks since the last join, maybe none, in the order of their submission; waits
        for them.

        Raises the exception of the first chunk that failed, and HangError where a reward takes too long; the chunks
        behind it are dropped.
        """
        chunks, self._waiting = self._waiting, []
        try:
            return Judgement.join([self._scorer.patience.result(chunk) for chunk in chunks] or [self._scorer.empty()])
        finally:
            for chunk in chunks:
                chunk.cancel()


def build_scorer(rewards: Sequence[Plugin], scoring: ScoringSettings, mix: Plugin | None = None) -> Scorer:
    """Builds the rewards by their names; the fields of `BESIDE` belong to the run, all others to the reward."""
    terms = []
    for settings in rewards:
        own = {key: value for key, value in settings.items() if key not in BESIDE}
        weight = _weight(settings.get("weight", 1.0))
        reward = plugins.build("rewards", own, beside=BESIDE)
        if not isinstance(reward, Reward):
            lacking = [part for part in (*Reward.__annotations__, "score") if part not in dir(reward)]
            raise ConfigError(f"rewards.{own['name']} is not a reward: it has no {', '.join(lacking)}")
        plugins.refuse_half("rewards", own["name"], reward)
        if reward.granularity == "segment" and not isinstance(reward, Segmented):
            raise ConfigError(f"rewards.{own['name']} judges segments, and has no method `ends` to say where they end")
        device = _device(settings.get("device"), own["name"], reward)
        if scoring.pool == "ray" and device is None and is_placeable(reward):
            reward = PlacedReward(reward, scoring.actors, scoring.copies)
        terms.append(RewardTerm(_checked(label_of(settings)), reward, weight, device))
    mixed = None if mix is None else plugins.build("mixes", mix)
    return Scorer(tuple(terms), scoring.max_failed_share, mixed, Patience(scoring.call_seconds))


def _device(value: Any, name: str, reward: Reward) -> torch.device | None:
    """Returns the device of a reward's network. Raises ConfigError for no such name, or a reward without a network."""
    if value is None:
        return None
    if not isinstance(reward, Prepared) or "model" not in reward.needs:
        raise ConfigError(f"rewards.device is for rewards that run a network, and {name!r} runs none; remove it")
    try:
        return torch.device(value)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"rewards.device must be a device of torch such as cpu or cuda:1, got {value!r}") from error


def _weight(value: Any) -> float | Schedule:
    """Returns a weight: a number, or the schedule of a section such as {start: 0, end: 1, last: 100}."""
    if isinstance(value, Mapping):
        schedule: Schedule = plugins.checked(Schedule, value, "rewards.weight")
        return schedule
    try:
        if isinstance(value, bool):
            raise TypeError("true and false are no weights")
        return float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"rewards.weight must be a number, or start, end and last, got {value!r}") from error


def _checked(value: Any) -> str:
    """The label as a text in one line."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ConfigError(f"rewards.label must be a text in one line, got {value!r}")
    return value
