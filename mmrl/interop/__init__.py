"""Rewards as reward functions of other trainers: what the functions for TRL and for verl share."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mmrl.core.contracts import Reward, Stateful
from mmrl.core.data import Outputs, Prompt, Scores
from mmrl.core.declarations import MixDeclaration
from mmrl.core.keys import seed_from
from mmrl.core.reward_batches import CONTROLS, MEDIA
from mmrl.media.pictures import Picture
from mmrl.parsing.actions.dialects import DIALECTS, DialectName
from mmrl.parsing.coordinates import Convention
from mmrl.prompts.row import without_none
from mmrl.prompts.row_pictures import BadRow, PictureFolder
from mmrl.scoring.scorer import Scorer
from mmrl.scoring.standalone import answered, judge, scorer_of, without_arrays
from mmrl.system.errors import ConfigError
from mmrl.system.spelling import did_you_mean

Section = str | Mapping[str, Any]  # a reward by name, or as in a config

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answers:
    """B answers of another trainer; answers with the same number in `group` are compared."""

    prompts: tuple[Prompt, ...]  # B
    texts: tuple[str, ...]  # B
    group: tuple[int, ...]  # B
    num_tokens: tuple[int, ...] | None = None  # B, the end token included
    is_finished: tuple[bool, ...] | None = None  # B: ended by itself
    iteration: int = 0


@dataclass(frozen=True)
class Judge:
    """The judge of another trainer's answers: one or more rewards, and how answers are read."""

    scorer: Scorer
    coordinates: Convention
    dialect: DialectName | None

    @property
    def needs(self) -> frozenset[str]:
        """Returns the needs of all rewards together."""
        return frozenset[str]().union(*(term.reward.needs for term in self.scorer.terms))

    @property
    def target_fields(self) -> list[str]:
        """Returns the fields of a prompt's target that the rewards need, sorted."""
        return sorted(need.removeprefix("target.") for need in self.needs if need.startswith("target."))

    @property
    def compares(self) -> str | None:
        """Returns the mix, or the first reward, that compares the answers of a group; None where none does."""
        if MixDeclaration.of(self.scorer.mix).is_relative:
            return f"mix {type(self.scorer.mix).__name__}"
        names = [term.name for term in self.scorer.terms if term.reward.granularity == "group"]
        return f"reward {names[0]!r}" if names else None

    def __call__(self, answers: Answers) -> Scores:
        """Scores B answers by R rewards: `values` [B, R], NaN where a reward could not judge; such failures are logged.

        Raises ConfigError where a prompt lacks what a reward needs, or where a reward refuses its target.
        """
        if "canvases" in self.needs and not all(prompt.media for prompt in answers.prompts):
            name = next(term.name for term in self.scorer.terms if "canvases" in term.reward.needs)
            raise ConfigError(f"reward {name!r} needs an image in every prompt: coordinates are those of an image")
        counted, ended = answers.num_tokens, answers.is_finished
        outputs = Outputs(
            num_tokens=None if counted is None else torch.tensor(counted, dtype=torch.int64),
            is_finished=None if ended is None else torch.tensor(ended, dtype=torch.bool),
        )
        outputs = answered(
            answers.prompts, answers.texts, coordinates=self.coordinates, dialect=self.dialect, outputs=outputs
        )
        # Noise of rewards is a function of what is judged: batches and processes do not repeat each other's.
        judgement = judge(
            self.scorer,
            answers.prompts,
            outputs,
            group=answers.group,
            iteration=answers.iteration,
            seed=seed_from(*answers.texts),
        )
        unjudged = judgement.scores.values.isnan().sum(0).tolist()
        for number, failure in zip(unjudged, judgement.first_failures, strict=True):
            if failure:
                log.warning("%d of %d answers could not be judged: %s", number, len(answers.texts), failure)
        return judgement.scores


def judge_for(
    trainer: str,
    rewards: Section | Sequence[Section],
    *,
    makes: Collection[str],
    mix: Mapping[str, Any] | None,
    coordinates: Convention,
    dialect: DialectName | None,
    device: str,
) -> Judge:
    """Returns the judge of a trainer's answers, which hold `makes` (of `reward_batches.MEDIA`); loads all weights.

    Raises ConfigError for an unknown reward, setting or dialect, for a reward that needs more than the trainer
    provides, and where weights cannot be loaded.
    """
    if coordinates == "resized":
        raise ConfigError(
            f"coordinates 'resized' are pixels after the processor of {trainer}, which gives no reward their number: "
            "resize the images of the data set (mmrl.parsing.coordinates.resized_size), then the unit is 'original'"
        )
    if dialect is not None and dialect not in DIALECTS:
        raise ConfigError(f"there is no dialect {dialect!r}{did_you_mean(dialect, DIALECTS)}")
    provided = {"texts", "canvases", *makes} | (set() if dialect is None else {"actions"})
    sections = [rewards] if isinstance(rewards, str | Mapping) else list(rewards)
    scorer = scorer_of(sections, mix=mix, device=device)
    for term in scorer.terms:
        _check_reward(trainer, term.name, term.reward, provided)
    if MixDeclaration.of(scorer.mix).is_of_advantages:
        raise ConfigError(
            f"this mix combines advantages, which {trainer} computes itself; give {trainer} each reward alone"
        )
    return Judge(scorer, coordinates, dialect)


def _check_reward(trainer: str, name: str, reward: Reward, provided: set[str]) -> None:
    """Raises ConfigError for a reward that needs more than the trainer provides, or that has a state."""
    if lacking := sorted(need for need in reward.needs if need in (*MEDIA, CONTROLS) and need not in provided):
        hint = "; name a dialect to read actions" if "actions" in lacking else ""
        known = ", ".join(one for one in MEDIA if one in provided)
        raise ConfigError(f"reward {name!r} needs {' and '.join(lacking)}; {trainer} provides {known}{hint}")
    if isinstance(reward, Stateful) and _has_state(reward.state_dict()):
        raise ConfigError(f"reward {name!r} keeps a state between iterations, which {trainer} does not save")


def _has_state(state: Mapping[str, Any]) -> bool:
    """Returns whether a state holds anything but the empty states of inner rewards."""
    return any(_has_state(value) if isinstance(value, Mapping) else True for value in state.values())


def plain(value: Any) -> Any:
    """Returns a value of a data set as plain Python: arrays as lists, structs without Arrow's fields of None."""
    return without_none(without_arrays(value))


@dataclass(frozen=True)
class LoadedPicture:
    """An image of a prompt that is in memory already."""

    image: Any = field(hash=False)  # of Pillow, in RGB

    @property
    def size(self) -> tuple[int, int]:
        width, height = self.image.size
        return width, height

    def load(self) -> Any:
        return self.image


def pictures(value: Any, name: str) -> tuple[Picture, ...]:
    """Returns one image, or each of a list, as pictures of a prompt.

    An image is one of Pillow, bytes, {bytes, path}, base64 text or a path. `name` is its name in errors. Raises
    ConfigError for a value that is no image.
    """
    folder = PictureFolder(Path.cwd(), outside=True)
    values = [] if value is None else value if isinstance(value, list | tuple) else [value]
    try:
        # One of Pillow in RGB is taken as it is; all else goes the way of the files of a data set.
        return tuple(
            LoadedPicture(one) if getattr(one, "mode", None) == "RGB" else folder.picture(one, name) for one in values
        )
    except BadRow as error:
        raise ConfigError(str(error)) from error


def check_lengths(number: int, what: str, given: Mapping[str, Sequence[Any]]) -> None:
    """Raises ConfigError where a list has another length than `number`; `what` (such as "prompts") is counted."""
    for name, values in given.items():
        if len(values) != number:
            raise ConfigError(f"needs one of {name!r} for each of {number} {what}, got {len(values)}")
