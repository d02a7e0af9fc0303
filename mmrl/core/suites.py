"""Suites: benchmarks by name, one YAML file each, with prompts, sampler, judge and the number that is computed."""

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from mmrl.core.config import DatasetSettings, NotNegative, Plugin, Positive, Settings, label_of
from mmrl.core.plugins import explain
from mmrl.system.errors import ConfigError
from mmrl.system.spelling import did_you_mean
from mmrl.system.yaml_text import parse_yaml

SHIPPED = files("mmrl").joinpath("suites")
Kind = Literal["images", "videos", "answers", "actions"]
How = Literal["mean", "mean_of_kinds", "share_at_least", "best_of", "ratio"]


class NumberSettings(Settings):
    """How one number is computed of the scores of all samples: `mmrl.scoring.suite_numbers`."""

    of: str | None = None  # the label of a reward; null: the weighted sum of all
    # mean: over samples; mean_of_kinds: over kinds, of the mean in each; share_at_least: of the samples that score `at`
    # or more; best_of: the mean over prompts of the best sample; ratio: the sum over samples by the sum of `over`.
    how: How = "mean"
    over: str | None = None  # the label of the reward whose sum a ratio is divided by
    # A score is 1 where it is at least this, else 0, before anything else is computed; null: scores stay as they are.
    at: float | None = None
    by: str | None = None  # the field of the target with the kind of a prompt; null: there are no kinds
    only: tuple[str, ...] = ()  # the kinds that count; (): all
    least: float | None = None  # samples that score less do not count at all; null: all do
    unit: Literal["share", "percent", "points"] = "share"  # percent: 100 times what the rewards give

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.how == "share_at_least" and self.at is None:
            raise ValueError("how: share_at_least needs `at`, the smallest score that counts")
        if self.how == "mean_of_kinds" and self.by is None:
            raise ValueError("how: mean_of_kinds needs `by`, the field of the target with the kind")
        if self.only and self.by is None:
            raise ValueError("only: names kinds, so it needs `by`, the field of the target with the kind")
        if (self.how == "ratio") != (self.over is not None) or (self.how == "ratio" and self.at is not None):
            raise ValueError("how: ratio goes with `over`, the label of the reward that it is divided by, and no `at`")
        return self


class PublishedNumber(Settings):
    """The number of a model as somebody published it, in the unit of the suite's number."""

    model: Annotated[str, Field(min_length=2)]
    number: float
    source: Annotated[str, Field(min_length=5)]  # paper or page, with its table


class SuiteSettings(Settings):
    """A benchmark: which prompts are sampled how often, what judges the samples, and how the number is computed."""

    title: Annotated[str, Field(min_length=2)]
    source: Annotated[str, Field(min_length=5)]  # who published it: authors, year, title, arXiv id
    kind: Kind  # what a policy must make to be tested by it
    data: Annotated[str, Field(min_length=1)]  # where the data is published, and under which licence if it is known
    # A data set, or several that are joined. Paths are those of the published files, which --data finds in a folder.
    prompts: DatasetSettings | Annotated[tuple[DatasetSettings, ...], Field(min_length=1)]
    samples_per_prompt: Positive = 1
    seed: int = 0  # of the noise
    # Settings that are laid over those of the run's evaluation sampler; with another `name`: in its place. null: none.
    sampler: Plugin | None = None
    rewards: Annotated[tuple[Plugin, ...], Field(min_length=1)]  # the judge, as in evaluation.rewards
    number: NumberSettings
    also: dict[str, NumberSettings] = Field(default={})  # further numbers by name
    saved_samples: NotNegative = 16  # samples that are saved to look at
    published: tuple[PublishedNumber, ...] = ()  # of base models
    note: str = ""  # how this differs from the published protocol

    @model_validator(mode="after")
    def _names_its_rewards(self) -> Self:
        labels = [str(label_of(reward)) for reward in self.rewards if "name" in reward]
        for number in (self.number, *self.also.values()):
            for field, label in (("of", number.of), ("over", number.over)):
                if label is not None and label not in labels:
                    raise ValueError(f"number.{field} must be the label of a reward{did_you_mean(label, labels)}")
        return self

    @property
    def parts(self) -> tuple[DatasetSettings, ...]:
        """Returns the data sets, one or several."""
        return self.prompts if isinstance(self.prompts, tuple) else (self.prompts,)

    @property
    def kind_fields(self) -> list[str]:
        """Returns the fields of targets that hold kinds, those of the main number first, each once."""
        fields = (number.by for number in (self.number, *self.also.values()))
        return list(dict.fromkeys(field for field in fields if field is not None))


class Suite(Settings):
    """A suite with its name, and the digest of the file that it was read from."""

    name: str
    digest: str  # SHA-256 of the file
    settings: SuiteSettings


def suite_names() -> list[str]:
    """Returns the names of the shipped suites, sorted."""
    return sorted(item.name.removesuffix(".yaml") for item in SHIPPED.iterdir() if item.name.endswith(".yaml"))


def load_suite(suite: str) -> Suite:
    """Returns a shipped suite by its name, or that of a user's file that ends in .yaml.

    Raises ConfigError for an unknown name, a file that cannot be read, and settings that are wrong.
    """
    path = Path(suite)
    is_file = path.suffix in (".yaml", ".yml")
    if not is_file and suite not in suite_names():
        raise ConfigError(f"there is no suite {suite!r}{did_you_mean(suite, suite_names())}")
    try:
        content = path.read_bytes() if is_file else SHIPPED.joinpath(f"{suite}.yaml").read_bytes()
        tree = parse_yaml(content.decode(), suite)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the suite {suite}: {error}") from error
    if not isinstance(tree, Mapping):
        raise ConfigError(f"the suite {suite} must hold a mapping of settings, got {type(tree).__name__}")
    name = path.stem if is_file else suite
    return Suite(name=name, digest=hashlib.sha256(content).hexdigest(), settings=_checked(suite, tree))


def _checked(suite: str, tree: Mapping[str, Any]) -> SuiteSettings:
    try:
        return SuiteSettings.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, f"suite {suite}", SuiteSettings)) from error
