"""YAML and overrides to a RunConfig, every key and type checked before any weight is loaded."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator

from mmrl.core.plugins import check_numbers, explain
from mmrl.system.errors import ConfigError
from mmrl.system.spelling import near
from mmrl.system.time_limits import CALL_SECONDS
from mmrl.system.yaml_text import NOT_YAML, parse_yaml

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]


class Settings(BaseModel):
    """Base of every section: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MoreSettings(Settings):
    """Further members for the prompts whose mean score is least certain: `mmrl.training.allocation`."""

    budget: Positive  # further members of an iteration, all prompts together
    per_prompt: Positive  # of which one prompt gets so many at most
    rounds: Positive = 1  # that the budget is spent in; each looks at the scores of those before
    exploration: Annotated[float, Field(ge=0)]  # what the bonus for prompts with few samples counts
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95  # of the interval whose width should fall

    def in_round(self, number: int) -> int:
        """Further members of round `number`, counted from 0; where they do not divide, the first ones draw more."""
        return self.budget // self.rounds + (number < self.budget % self.rounds)


class ReplaySettings(Settings):
    """Samples of earlier iterations in the place of those that teach nothing: `mmrl.training.replay`."""

    capacity: Positive  # samples that are kept, the newest
    alpha: Annotated[float, Field(ge=0)] = 1.0  # they are drawn in proportion to |advantage|^alpha
    correct: Annotated[float, Field(ge=0, le=1)] = 0.1  # share of samples that teach nothing but are fully correct ...
    correct_above: float = 0.95  # ... whose total is above this


class GroupSettings(Settings):
    """Groups whose rewards all but agree (spread below `min_spread`) teach nothing: keep, drop or replace them."""

    degenerate: Literal["keep", "drop", "refill"] = "keep"
    min_spread: Annotated[float, Field(ge=0)] = 0.0
    mean_between: tuple[float, float] | None = None  # and so do those whose mean total is outside: too hard, too easy
    max_refills: NotNegative = 2
    hint: str | None = None  # of a prompt's target: what a refill asks it again with, where no total was above ...
    hint_above: float = 0.0  # ... this
    more: MoreSettings | None = None  # further members, before groups are kept, dropped or replaced


__all__ = ["GroupSettings", "ReplaySettings"]  # which most look for here

Beta = Annotated[float, Field(ge=0, lt=1)]  # how much an average keeps in one step
Plugin = dict[str, Any]  # {"name": ..., the plug-in's own fields}; checked when it is built


class DatasetSettings(Settings):
    """Prompts from files in a layout that others use, with their images; `docs/data.md` lists the layouts."""

    path: str | tuple[str, ...]  # a .jsonl, .json, .csv or .parquet file, a folder, or owner/name of the hub
    layout: str = "columns"
    subset: str | None = None  # of a hub name or folder
    split: str | None = None  # of a hub name or folder; None: train
    images: str | None = None  # the folder that image paths are under; None: the file's own
    outside: bool = False  # whether image paths may leave it
    columns: dict[str, str] = Field(default={})  # fields of the layout that the files call otherwise
    template: str | None = None  # a text with {prompt} in it; {row.NAME} is another column
    bad_rows: Literal["fail", "skip"] = "fail"
    decode: bool = False  # open every image whole when the data is read: slower, and a damaged one is a bad row
    limit: Positive | None = None  # rows at most
    seed: int | None = None  # takes rows in a random order; None: the first ones
    cache: str | None = None  # where `datasets` keeps its copies; None: its own folder

    @field_validator("template")
    @classmethod
    def _has_the_prompt(cls, template: str | None) -> str | None:
        if template is not None and template.count("{prompt}") != 1:
            raise ValueError("needs {prompt} once, where the prompt stands")
        return template


def _kind_of_source(value: Any) -> str:
    if isinstance(value, Mapping | BaseModel):
        return "DatasetSettings"
    return "list" if isinstance(value, list | tuple) else "text"


Text = Annotated[str, Tag("text")]
Dataset = Annotated[DatasetSettings, Tag("DatasetSettings")]
Source = Annotated[Text | Dataset, Discriminator(_kind_of_source)]


class MixedPrompts(Settings):
    """One source of a weighted mixture."""

    source: Source
    weight: Annotated[float, Field(gt=0)] = 1.0


class CurriculumSettings(Settings):
    """Sources of a mixture are drawn more often while they teach more: `mmrl.prompts.curriculum`."""

    window: Positive = 300  # groups of a source that count
    temperature: Annotated[float, Field(gt=0)] = 0.1


class PromptSettings(Settings):
    """Where prompts come from: `lab:NAME/SPLIT`, a .txt (one a line) or .jsonl file (`prompt` and target fields).

    Such a path is looked up in the working folder, then beside the shipped configs. All else is a section with a `path`
    and a `layout`.
    """

    train: Annotated[Text | Dataset | Annotated[tuple[MixedPrompts, ...], Tag("list")], Discriminator(_kind_of_source)]
    held_out: Source | None = None
    curriculum: CurriculumSettings | None = None


class OptimizerSettings(Settings):
    """AdamW, Adam or SGD of torch; `adamw8bit` of bitsandbytes. Schedules count iterations."""

    name: Literal["adamw", "adam", "sgd", "adamw8bit"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0, le=1e30)] = 3e-4  # what is larger overflows inside of torch
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    epsilon: Annotated[float, Field(gt=0, le=1e6)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    warmup: NotNegative = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"


class UpdateSettings(Settings):
    """Optimizer steps of one rollout: `epochs` times over it, each in `minibatches` parts of whole groups.

    `micro_batch`: network calls of one forward and backward pass; it changes memory, never the result. `old`: with more
    than one step, log-probs as recorded at sampling, or recomputed in one pass before the first step.
    """

    epochs: Positive = 1
    minibatches: Positive = 1
    micro_batch: Positive = 512
    old: Literal["recorded", "recomputed"] = "recorded"


class CorrectionSettings(Settings):
    """What is done where another engine draws the answers (`modality.engine`), whose log-probs are never quite ours.

    Advantages are multiplied by importance weights w = p_ours / p_theirs of each token or of the whole answer
    (`sequence`): `truncated` at `cap`, or `masked`, where those outside of `floor` to `cap` become 0. Without such an
    engine nothing is corrected. `docs/engines.md` says more.
    """

    kind: Literal["none", "truncated", "masked"] = "truncated"
    level: Literal["token", "sequence"] = "token"
    cap: Annotated[float, Field(ge=1)] = 2.0
    floor: Annotated[float, Field(ge=0, le=1)] = 0.5


class AveragingSettings(Settings):
    """An exponential moving average of the trained weights, taken after each optimizer step."""

    decay: Annotated[float, Field(ge=0, lt=1)] = 0.9


class ScoringSettings(Settings):
    """`overlap`: score a chunk of groups while the next is sampled. A larger share of failed samples fails the run, and
    so does a reward that takes longer than `call_seconds` for one call.
    """

    overlap: bool = True
    max_failed_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    call_seconds: Annotated[float, Field(gt=0, le=1e6)] = CALL_SECONDS


class EvaluationSettings(Settings):
    """Held-out evaluation every `every` iterations and at both ends, with fixed noise.

    `rewards` default to the run's own, `weights` to the averaged ones where there are any. `also` names further
    samplers that the same prompts are drawn with: `also: {greedy: {...}}` is reported as `held_out_greedy`.
    """

    every: NotNegative = 0  # 0: only before and after training
    sampler: Plugin
    also: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")], Plugin] = Field(default={})
    rewards: tuple[Plugin, ...] | None = None
    weights: Literal["trained", "averaged", "old"] | None = None
    num_prompts: Positive | None = None  # of the held-out set, the first; None: all
    samples_per_prompt: Positive = 4
    saved_samples: NotNegative = 16
    seed: int = 123


class CheckpointSettings(Settings):
    """A checkpoint every `every` iterations, where an evaluation is the best so far, and at the end.

    The last `keep` and the best are kept.
    """

    every: NotNegative = 10  # 0: only at the end
    keep: Positive = 2


class RunConfig(Settings):
    """One run."""

    seed: int = 0
    iterations: Positive
    max_seconds: Annotated[float, Field(gt=0)] | None = None  # of training; the run then ends as if done
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    sharding: Literal["none", "full"] = "none"  # full: several processes share the weights, a part of each tensor each
    threads: Positive | None = None  # of torch on the CPU
    group_size: Positive
    prompts_per_iteration: Positive
    rollout_groups: Positive | None = None  # groups sampled at once on one process; None: all
    prompts: PromptSettings
    modality: Plugin
    sampler: Plugin
    rewards: Annotated[tuple[Plugin, ...], Field(min_length=1)]
    mix: Plugin | None = None  # how they become one number; None: their weighted sum
    advantage: Plugin
    loss: Plugin
    groups: GroupSettings = GroupSettings()
    replay: ReplaySettings | None = None
    updates: UpdateSettings = UpdateSettings()
    correction: CorrectionSettings = CorrectionSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    averaging: AveragingSettings | None = None
    scoring: ScoringSettings = ScoringSettings()
    evaluation: EvaluationSettings | None = None
    checkpoint: CheckpointSettings = CheckpointSettings()
    trackers: tuple[Plugin | str, ...] = ()
    warm_start: str | None = None  # a run whose trained weights this one starts from


SHIPPED = files("mmrl.configs")
LAB = "lab"  # the folder of the configs of single algorithms


def shipped_names() -> list[str]:
    """Names of the configs that come with mmrl; `lab/NAME` are those of single algorithms on the labs."""
    folders = {"": SHIPPED, f"{LAB}/": SHIPPED.joinpath(LAB)}
    found = [f"{prefix}{item.name}" for prefix, folder in folders.items() for item in folder.iterdir()]
    return sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml"))


def load_config(config: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The checked settings of a path or a shipped name, with `key.sub=value` overrides.

    Raises ConfigError for a missing file, text that is not YAML, unknown keys, wrong types.
    """
    return _checked(read_yaml(config), overrides)


def check_config(settings: Mapping[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """The same from a mapping."""
    try:
        text = yaml.safe_dump(dict(settings))
    except NOT_YAML as error:
        raise ConfigError(f"settings must be numbers, text, lists and mappings, as in YAML: {error}") from error
    return _checked(parse_yaml(text, "the settings"), overrides)  # a deep copy


def _checked(tree: Any, overrides: Sequence[str]) -> RunConfig:
    """The settings of a tree that is this function's own."""
    for override in overrides:
        _override(tree, override)
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, "config", RunConfig)) from error
    check_numbers(tree, config, "config")
    return config


def label_of(settings: Mapping[str, Any]) -> Any:
    """What the section of a reward says that it is called in metrics and tables, not checked.

    Its `label`, else its name: of the user's own the class or the function alone, without the module.
    """
    name = settings["function"] if settings["name"] == "python" and "function" in settings else settings["name"]
    return settings.get("label", str(name).rpartition(":")[2])


def to_yaml(config: RunConfig) -> str:
    """The resolved settings as text that `load_config` reads back to an equal config."""
    # null is written too: where a default is a number, null is a setting of its own
    return dump_yaml(config.model_dump(mode="json"))


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Settings as YAML, keys in their order."""
    return yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True)


def near_config(name: str) -> str:
    """What a message about an unknown config ends with: the nearest shipped name, or where they are listed."""
    return near(name, shipped_names()) or "; `mmrl list configs` names those"


def read_yaml(config: str | Path) -> dict[str, Any]:
    """The settings of a path or a shipped name as YAML has them, unchecked."""
    path, name = Path(config), str(config)
    is_file = path.is_file()
    if not is_file and name not in shipped_names():
        raise ConfigError(f"there is no config {name!r}: neither a file nor a shipped name{near_config(name)}")
    try:
        text = (path if is_file else SHIPPED.joinpath(f"{name}.yaml")).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config {path}: {error}") from error
    tree = parse_yaml(text, str(path))
    if not isinstance(tree, dict):
        got = "nothing" if tree is None else type(tree).__name__
        raise ConfigError(f"{path} must hold a mapping of settings, got {got}")
    return tree


def _override(tree: Any, override: str) -> None:
    """Sets `key.sub=value` in place; the value is YAML, a number in the path is an index."""
    path, is_assignment, text = override.partition("=")
    keys = path.strip().split(".")
    if not is_assignment or not all(keys):
        raise ConfigError(f"an override looks like key.sub=value, got {override!r}")
    value = parse_yaml(text, f"the value of {override[:80]!r}")
    for depth, key in enumerate(keys):
        is_last = depth == len(keys) - 1
        if isinstance(tree, list):
            if not key.isdecimal() or int(key) >= len(tree):
                raise ConfigError(f"{override!r}: {'.'.join(keys[:depth])} is a list of {len(tree)}, got index {key!r}")
            if is_last:
                tree[int(key)] = value
            else:
                tree = tree[int(key)]
            continue
        if not isinstance(tree, dict):
            raise ConfigError(f"{override!r}: {'.'.join(keys[:depth])} holds {tree!r}, which has no fields")
        if is_last:
            tree[key] = value
        else:
            tree[key] = {} if tree.get(key) is None else tree[key]
            tree = tree[key]
