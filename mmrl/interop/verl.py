"""Rewards as `compute_score` of verl (`custom_reward_function`; its arguments are those of verl 0.3 to 0.9)."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl.core.data import Prompt
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.schedules import Schedule
from mmrl.interop import Answers, Judge, Section, check_lengths, judge_for, pictures, plain
from mmrl.media.pictures import Picture
from mmrl.parsing.actions.dialects import DialectName
from mmrl.parsing.coordinates import Convention
from mmrl.prompts.datasets import read_json
from mmrl.system.errors import ConfigError, RunError
from mmrl.system.spelling import did_you_mean

TRUTH = "ground_truth"
QUESTION = "question"  # the entry of extra_info that verl's own data sets hold the question in
INDEX = "index"  # and the one that numbers the rows


def score_function(
    rewards: Section | Sequence[Section],
    *,
    target: str | Mapping[str, str] | None = None,
    image: str | None = None,
    mix: Mapping[str, Any] | None = None,
    coordinates: Convention = "original",
    dialect: DialectName | None = None,
    unjudged: float | None = None,
    device: str = "cpu",
) -> "ScoreFunction":
    """Returns rewards as `compute_score` for verl's managers of single samples (`naive`, `dapo`, `prime` ...).

    Args:
        rewards: one reward or several, by name or as in a config; a sample's score is the sum by their weights, or
            what the `mix` makes of them.
        target: the field of the target that `ground_truth` is; or for each of several fields its place, "ground_truth"
            or an entry of `extra_info`; None: `ground_truth` is the whole target, as a mapping or its JSON text. Every
            other entry of `extra_info` is a field of its own name.
        image: the entry of `extra_info` that holds the prompt's image, or its [width, height], which coordinates refer
            to: verl gives rewards no images. The entry "question" is the text of the prompt.
        coordinates: the unit of points and boxes in the answers; `resized` is refused, since verl does not give it.
        dialect: how answers are read as actions of a GUI; None: answers are no actions.
        unjudged: the score of a sample that could not be judged; None: such a sample is an error, since verl cannot
            leave a sample out.
    Raises:
        ConfigError: an unknown reward or setting, a reward that needs more than verl provides, or one that compares
            the samples of a group.
    """
    judge = _judge(rewards, mix, coordinates, dialect, device)
    if judge.compares:
        raise ConfigError(
            f"{judge.compares} compares the answers to a prompt, but here verl asks about one alone; use "
            "batch_score_function with the manager 'batch'"
        )
    return ScoreFunction(judge, _PromptFields(judge, target, image), unjudged)


def batch_score_function(
    rewards: Section | Sequence[Section],
    *,
    target: str | Mapping[str, str] | None = None,
    image: str | None = None,
    mix: Mapping[str, Any] | None = None,
    coordinates: Convention = "original",
    dialect: DialectName | None = None,
    unjudged: float | None = None,
    device: str = "cpu",
) -> "BatchScoreFunction":
    """Returns rewards as `compute_score` for verl's manager `batch`; the arguments are those of `score_function`.

    Rewards may compare the samples of a group: those of one data source whose `extra_info` has the same "index".
    """
    judge = _judge(rewards, mix, coordinates, dialect, device)
    return BatchScoreFunction(judge, _PromptFields(judge, target, image), unjudged)


def _judge(
    rewards: Section | Sequence[Section],
    mix: Mapping[str, Any] | None,
    coordinates: Convention,
    dialect: DialectName | None,
    device: str,
) -> Judge:
    judge = judge_for("verl", rewards, makes=(), mix=mix, coordinates=coordinates, dialect=dialect, device=device)
    for term in judge.scorer.terms:
        if isinstance(term.weight, Schedule) or RewardDeclaration.of(term.reward).follows_iteration:
            raise ConfigError(f"reward {term.name!r} changes over the iterations, which verl does not tell")
    return judge


@dataclass(frozen=True)
class _PromptFields:
    """The places of a prompt's parts in the arguments of verl."""

    judge: Judge
    target: str | Mapping[str, str] | None
    image: str | None

    def prompt(self, ground_truth: Any, extra_info: Mapping[str, Any] | None) -> Prompt:
        """Returns a sample's prompt. Raises ConfigError for a missing entry, or a ground truth that is no target."""
        extra = {} if extra_info is None else dict(extra_info)
        entries = {name: plain(value) for name, value in extra.items() if name != self.image}
        target = {**entries, **self._target(plain(ground_truth), entries)}
        target = {name: value for name, value in target.items() if value is not None}
        if lacking := [name for name in self.judge.target_fields if name not in target]:
            raise ConfigError(
                f"the rewards need {lacking[0]!r} in the target, which is neither in ground_truth nor in extra_info "
                f"({', '.join(extra) or 'empty'}); target={lacking[0]!r} makes it what ground_truth is"
            )
        return Prompt(str(entries.get(QUESTION) or ""), self._media(extra), target)

    def _target(self, truth: Any, entries: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(self.target, str):
            return {self.target: truth}
        if self.target is not None:
            known = {**entries, TRUTH: truth}
            return {name: _entry(known, where, f"{name!r} of the target") for name, where in self.target.items()}
        if isinstance(truth, str) and truth.lstrip().startswith("{"):
            try:
                truth = read_json(truth)
            except ConfigError as error:
                raise ConfigError(f"ground_truth {truth[:80]!r} {error}") from error
        return dict(truth) if isinstance(truth, Mapping) else {}

    def _media(self, extra: Mapping[str, Any]) -> tuple[Picture, ...]:
        if self.image is None:
            return ()
        given = _entry(extra, self.image, "the image")
        size = plain(given) if isinstance(given, list | tuple) or hasattr(given, "tolist") else None
        if size is not None and len(size) == 2 and all(isinstance(side, int | float) for side in size):
            if not all(1 <= side < math.inf for side in size):
                raise ConfigError(f"entry {self.image!r} of extra_info must be [width, height] in pixels, got {size}")
            return (PictureSize((int(size[0]), int(size[1]))),)
        return pictures(given, f"entry {self.image!r} of extra_info")


def _entry(known: Mapping[str, Any], name: str, what: str) -> Any:
    if name in known and known[name] is None:
        raise ConfigError(f"{what} is read from {name!r}, which is null in extra_info")
    if name not in known:
        raise ConfigError(f"{what} is read from {name!r}, which extra_info does not have{did_you_mean(name, known)}")
    return known[name]


@dataclass(frozen=True)
class PictureSize:
    """An image of a prompt of which only width and height are known, in pixels."""

    size: tuple[int, int]

    def load(self) -> Any:
        raise ConfigError("a reward needs the image of the prompt, but extra_info holds only its size")


@dataclass(frozen=True)
class _Function:
    """What `ScoreFunction` and `BatchScoreFunction` share."""

    judge: Judge
    fields_of_prompt: _PromptFields
    unjudged: float | None

    def __post_init__(self) -> None:
        if self.unjudged is not None and not math.isfinite(self.unjudged):
            raise ConfigError(f"unjudged must be a finite number or None, got {self.unjudged}")
        if "score" in self.judge.scorer.names:
            raise ConfigError("a reward cannot be labelled 'score', as verl calls what all of them make together")

    def scores(self, answers: Answers) -> list[float | dict[str, float]]:
        """Returns B scores: numbers of one reward, dictionaries of several. Raises RunError for a failed sample."""
        scores = self.judge(answers)
        if self.unjudged is None and not scores.valid.all():
            raise RunError(
                f"{int((~scores.valid).sum())} of {len(answers.texts)} samples could not be judged (the log says why), "
                "and verl cannot leave a sample out; `unjudged` says what such a sample scores"
            )
        pairs = zip(scores.total.tolist(), scores.valid.tolist(), strict=True)
        totals = [total if self.unjudged is None or is_valid else self.unjudged for total, is_valid in pairs]
        if len(scores.names) == 1:
            return list(totals)
        each = [dict(zip(scores.names, row, strict=True)) for row in scores.values.tolist()]
        return [{"score": total, **values} for total, values in zip(totals, each, strict=True)]


@dataclass(frozen=True)
class ScoreFunction(_Function):
    """A `compute_score` of one sample, made by `score_function`."""

    def __call__(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,  # the address of verl's own reward model, where it runs one
    ) -> float | dict[str, float]:
        """Returns the score; of several rewards a dictionary of `score` and each one's score, NaN where it fails.

        Raises:
            ConfigError: an entry is missing, or a target does not fit.
            RunError: the sample could not be judged, and `unjudged` is None.
        """
        prompt = self.fields_of_prompt.prompt(ground_truth, extra_info)
        return self.scores(Answers((prompt,), (solution_str,), (0,)))[0]


@dataclass(frozen=True)
class BatchScoreFunction(_Function):
    """A `compute_score` of a batch, made by `batch_score_function`."""

    def __call__(
        self,
        data_sources: Sequence[str],
        solution_strs: Sequence[str],
        ground_truths: Sequence[Any],
        extra_infos: Sequence[Mapping[str, Any] | None] | None = None,
        **_: Any,  # as above
    ) -> list[float | dict[str, float]]:
        """Returns B scores as `ScoreFunction` does. Raises its errors, and ConfigError for lists of other lengths."""
        number = len(solution_strs)
        extras = [None] * number if extra_infos is None else list(extra_infos)
        given = {"data_sources": data_sources, "ground_truths": ground_truths, "extra_infos": extras}
        check_lengths(number, "solution_strs", given)
        if not number:
            return []
        prompts = tuple(map(self.fields_of_prompt.prompt, ground_truths, extras))
        group = self._groups(data_sources, extras)
        return self.scores(Answers(prompts, tuple(solution_strs), group))

    def _groups(self, sources: Sequence[str], extras: Sequence[Mapping[str, Any] | None]) -> tuple[int, ...]:
        """Returns the group of each sample; without a reward that compares samples, each is a group of its own."""
        if not self.judge.compares:
            return tuple(range(len(sources)))
        names = [(source, plain((extra or {}).get(INDEX))) for source, extra in zip(sources, extras, strict=True)]
        if any(index is None for _, index in names):
            raise ConfigError(
                f"{self.judge.compares} compares the answers to a prompt, which are those with the same {INDEX!r} in "
                "extra_info; a sample has none"
            )
        numbers: dict[str, int] = {}
        return tuple(numbers.setdefault(json.dumps([str(source), index]), len(numbers)) for source, index in names)
