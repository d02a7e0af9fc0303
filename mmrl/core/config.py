"""The settings of a run: their sections, and how YAML and overrides are checked before any weight is loaded."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, ValidationInfo, field_validator

from mmrl.core import systems
from mmrl.core.actors import ActorSettings, Pool
from mmrl.core.plugins import check_numbers, explain
from mmrl.core.templates import TEMPLATES, template_text
from mmrl.system.errors import ConfigError
from mmrl.system.spelling import near
from mmrl.system.time_limits import CALL_SECONDS
from mmrl.system.yaml_text import NOT_YAML, parse_yaml

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
WORKERS = 4  # threads that decode prompts beside an accelerator


class Settings(BaseModel):
    """The base of every section of a config. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RecipeSettings(Settings):
    """What a config is: an algorithm, its paper, and how far it was tried. A run does not depend on it."""

    name: Annotated[str, Field(min_length=2)]  # the algorithm, as people call it
    paper: Annotated[str, Field(min_length=2)]  # its authors, year and title
    arxiv: Annotated[str, Field(pattern=r"^\d{4}\.\d{4,5}$")]  # the paper's arXiv id, in quotes
    # How far it was tried: it learns on an embedded lab (`lab`); it runs on a small random model of the same classes
    # (`twin`); it was measured at real size (`gpu`); it reached the published number (`reproduced`).
    level: Literal["lab", "twin", "gpu", "reproduced"]

    @field_validator("arxiv", mode="before")
    @classmethod
    def _is_quoted(cls, arxiv: Any) -> Any:
        if isinstance(arxiv, int | float):
            raise ValueError('must stand in quotes, as "2505.05470" does: a bare number loses the zeros at its end')
        return arxiv


class MoreSettings(Settings):
    """Further members of groups, for the prompts whose mean score is least certain: `mmrl.training.allocation`."""

    budget: Positive  # further members of an iteration, of all groups together; they are always sampled
    per_prompt: Positive  # further members of one prompt, at most
    rounds: Positive = 1  # rounds that the budget is spread over; each looks at the scores of the rounds before
    exploration: Annotated[float, Field(ge=0)]  # the bonus of prompts with few samples, in the unit of the totals
    # The confidence level of the interval of a prompt's mean total, whose width further members make smaller.
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95

    def in_round(self, number: int) -> int:
        """Returns the further members of round `number`, counted from 0; the first rounds get those left over."""
        return self.budget // self.rounds + (number < self.budget % self.rounds)


class AugmentSettings(Settings):
    """Harder forms of easy prompts and easier forms of hard ones, by their groups: `mmrl.training.difficulty`."""

    # A prompt is easy or hard by the mean total of its group against that of the last `window` groups.
    window: Positive = 100
    tolerance: Annotated[float, Field(ge=0)] = 0.0  # a prompt whose mean differs by no more stays as it is
    # The standard deviation (white is 1) of the noise on the frames of an easy prompt is this times the difference;
    # 0: easy prompts stay as they are.
    noise: Annotated[float, Field(ge=0)] = 0.1
    # The field of a prompt's target with its right answer: answers that know it are sampled to a hard prompt, and the
    # beginning of the best one's thought becomes a cue. null: hard prompts stay as they are.
    answer: str | None = "answer"
    cue: Annotated[float, Field(gt=0)] = 1.0  # the share of the thought's words in the cue is this times the difference


class ReplaySettings(Settings):
    """Samples of earlier iterations in the place of samples that teach nothing: `mmrl.training.replay`."""

    capacity: Positive  # samples in the buffer, the newest
    # Samples are replayed in proportion to |advantage|^alpha, with replacement; 0: all alike.
    alpha: Annotated[float, Field(ge=0)] = 1.0
    # The share of fully correct samples that teach nothing, among those that the iteration learns from, that stay.
    correct: Annotated[float, Field(ge=0, le=1)] = 0.1
    correct_above: float = 0.95  # a sample is fully correct where its total is above this


class GroupSettings(Settings):
    """What happens to degenerate groups: those whose rewards all but agree, which teach nothing."""

    # `keep` degenerate groups, `drop` them, or `refill` the iteration with groups of new prompts.
    degenerate: Literal["keep", "drop", "refill"] = "keep"
    min_spread: Annotated[float, Field(ge=0)] = 0.0  # a degenerate group has totals of at most this standard deviation
    # A group whose mean total is below the first number or above the second is degenerate too; null: no group is for
    # it.
    mean_between: tuple[float, float] | None = None
    max_refills: NotNegative = 2  # rounds of new groups in an iteration
    # For `refill`: the field of a prompt's target with a hint; where all samples of a group fail, the next round
    # samples its prompt once more with this text in a line behind it. null: no hints.
    hint: str | None = None
    hint_above: float = 0.0  # a group fails as a whole where no total is above this
    # Samples prompts that are too easy or too hard once more, in another form, and learns from these groups instead;
    # null: none.
    augment: AugmentSettings | None = None
    # Further members for the prompts whose mean total is least certain; null: all groups have `group_size` members.
    more: MoreSettings | None = None


Beta = Annotated[float, Field(ge=0, lt=1)]  # the share of an average that one step keeps
Plugin = dict[str, Any]  # {"name": ..., the plug-in's own settings}; checked when the plug-in is built


class DatasetSettings(Settings):
    """Prompts from the files of a data set, with their images; `docs/data.md` lists the layouts."""

    # A .jsonl, .json, .csv or .parquet file, a folder, or owner/name of a data set of the hub; or a list of them.
    path: str | tuple[str, ...]
    layout: str = "columns"  # how the rows are written
    subset: str | None = None  # the configuration of a data set of the hub
    split: str | None = None  # of a data set of the hub or a folder: test, train[:100] ...; null: train
    images: str | None = None  # the folder that image paths are relative to; null: that of the file
    outside: bool = False  # image paths may leave that folder
    columns: dict[str, str] = Field(default={})  # fields of the layout -> the columns of the files for them
    # Texts that join the target of every row, such as `{task: chart}`, by which the reward `router` chooses.
    target: dict[str, str] = Field(default={})
    # A text around every prompt, with {prompt} in it ({row.NAME} is another column), or the name of a text: think,
    # plan, code, knowledge, examples.
    template: str | None = None
    # The share of choice questions that are asked the other way round: "What didn't he take?", where several options
    # are right (`mmrl.prompts.inversion`). `target.is_inverted` says which rows are.
    inverted: Annotated[float, Field(ge=0, le=1)] = 0.0
    # A row that does not fit ends the command (`fail`), or is left out with a warning (`skip`).
    bad_rows: Literal["fail", "skip"] = "fail"
    # Read the headers of all images and videos with the rows, where a broken one is a bad row (true), or only those
    # that a row needs, for a box or a span (false); a broken one is then left out when it is used. null: those of the
    # first 1,000 images and videos.
    headers: bool | None = None
    # Decode every image, and the first and last frame of every video, when the data is read: slower, and a damaged one
    # is then a bad row. false: only headers are read.
    decode: bool = False
    limit: Positive | None = None  # rows, at most; null: all
    seed: int | None = None  # takes the rows in a random order, for `limit`; null: the first ones
    cache: str | None = None  # the folder where `datasets` keeps its copies; null: its own, in the home folder

    @field_validator("template")
    @classmethod
    def _has_the_prompt(cls, template: str | None) -> str | None:
        if template is not None and template_text(template).count("{prompt}") != 1:
            raise ValueError(f"needs {{prompt}} once, where the prompt stands, or a name of {', '.join(TEMPLATES)}")
        return template


def _kind_of_source(value: Any) -> str:
    """Returns the tag by which pydantic knows the form of a source."""
    if isinstance(value, Mapping | BaseModel):
        return "DatasetSettings"
    return "list" if isinstance(value, list | tuple) else "text"


Text = Annotated[str, Tag("text")]
Dataset = Annotated[DatasetSettings, Tag("DatasetSettings")]
Source = Annotated[Text | Dataset, Discriminator(_kind_of_source)]


class MixedPrompts(Settings):
    """One source of a weighted mixture."""

    source: Source  # a lab, a file, or a section with the settings of a data set
    weight: Annotated[float, Field(gt=0)] = 1.0  # how often prompts come from it, relative to the other sources


class CurriculumSettings(Settings):
    """Sources of a mixture give more prompts while they teach more: `mmrl.prompts.curriculum`."""

    window: Positive = 300  # the last groups of a source, over which the mean size of its advantages is taken
    temperature: Annotated[float, Field(gt=0)] = 0.1  # large: by the weights; small: mostly the most promising source


class PromptSettings(Settings):
    """Where prompts come from.

    A source is `lab:NAME/SPLIT` (`lab:NAME/SPLIT[:n]` for its first n prompts), a .txt file with one prompt a line, a
    .jsonl file with `prompt` and the fields that rewards need, or a section with the settings of a data set. Paths are
    looked up in the working folder, then beside the shipped configs.
    """

    # A source, or a list of weighted sources.
    train: Annotated[Text | Dataset | Annotated[tuple[MixedPrompts, ...], Tag("list")], Discriminator(_kind_of_source)]
    held_out: Source | None = None  # a source that only the evaluation sees
    # Takes prompts from the sources of a mixture by what they still teach; null: by their weights.
    curriculum: CurriculumSettings | None = None


class OptimizerSettings(Settings):
    """AdamW, Adam or SGD of torch, or `adamw8bit` of bitsandbytes."""

    name: Literal["adamw", "adam", "sgd", "adamw8bit"] = "adamw"  # of torch; `adamw8bit` needs the extra `quantise`
    learning_rate: Annotated[float, Field(gt=0, le=1e30)] = 3e-4  # a larger one overflows inside of torch
    betas: tuple[Beta, Beta] = (0.9, 0.999)  # of Adam; the first is the momentum of `sgd`
    epsilon: Annotated[float, Field(gt=0, le=1e6)] = 1e-8  # of Adam
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.0  # decoupled from the gradient in adamw and adamw8bit
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0  # gradients are clipped to this norm; null: not clipped
    # One kernel for the whole step, without temporaries of the size of the weights; null: on GPUs. Same update but for
    # rounding; torch's own optimizers only.
    fused: bool | None = None
    warmup: NotNegative = 0  # iterations in which the learning rate rises linearly
    # The learning rate after the warmup: constant, or falling to 0 at the last iteration.
    schedule: Literal["constant", "linear", "cosine"] = "constant"


class UpdateSettings(Settings):
    """The optimizer steps of an iteration: `epochs` passes over the rollout, `minibatches` steps in each."""

    epochs: Positive = 1  # passes over a rollout
    minibatches: Positive = 1  # optimizer steps of a pass, each on its share of whole groups
    # Network calls of one forward and backward pass; changes memory, not the result. `auto`: as many as the forecast of
    # memory allows (see `memory.budget_gb`).
    micro_batch: Positive | Literal["auto"] = 512
    # Log-probs of the old weights where there is more than one step: `recorded` at sampling, or `recomputed` in a pass
    # before the first step.
    old: Literal["recorded", "recomputed"] = "recorded"
    # A sample whose advantage A is smaller in size is evaluated with probability |A| / min_advantage (at least 0.1) and
    # then counts 1 / probability: fewer network calls, the same gradient in expectation, with more variance. 0: all
    # samples are evaluated. With advantages of standard deviation 1, a value of 1 saves a third of the calls.
    min_advantage: Annotated[float, Field(ge=0)] = 0.0

    @property
    def calls_at_once(self) -> int:
        """Returns `micro_batch` as a number, which `auto` is once a trainer is made."""
        assert self.micro_batch != "auto", "mmrl.assembly.batches chooses it first"
        return self.micro_batch


class MemorySettings(Settings):
    """Where the large tensors of training live, and in which dtype a fully trained network computes."""

    # `bfloat16`: a fully trained network computes with weights of half the size, rounded from float32 masters that the
    # optimizer steps on; gradients are summed in float32. Changes numbers: what autocast leaves in float32, such as the
    # weights of norms and of the last layer, is rounded too. Needs `precision: bfloat16`.
    trained_weights: Literal["float32", "bfloat16"] = "float32"
    # `host`: the optimizer's state and the float32 masters are in the CPU's memory, and each step moves them to the
    # device in chunks. The same update; a step takes as long as moving 24 bytes for each trained weight.
    optimizer: Literal["device", "host"] = "device"
    # `host`: the reference, old and averaged weights are in the CPU's memory, and are moved to the device while they
    # are used. The same numbers.
    copies: Literal["device", "host"] = "device"
    # `host`: images, once they are scored, and the latents and means of denoising steps are in the CPU's memory, and
    # micro-batches move what they need. The same numbers. Answers, and rollouts that a gradient of rewards goes back
    # through, stay where they are.
    rollouts: Literal["device", "host"] = "device"
    # GB that a process may take, weights included, where `updates.micro_batch` or `modality.answer_batch` are `auto`;
    # null: 92% of what is free when the model is loaded, of the GPU or of the CPU. The numbers that were chosen are
    # written into the run's config.yaml, so that the run goes on with them.
    budget_gb: Annotated[float, Field(gt=0)] | None = None


class CorrectionSettings(Settings):
    """The correction for samples of an inference engine, or of older weights, whose log-probs are not the policy's own.

    Advantages are multiplied by importance weights w = p_policy / p_engine. Without `modality.engine` and
    `rollout.devices` nothing is corrected. `docs/engines.md` says more.
    """

    # Weights are `truncated` at `cap`, or `masked` to 0 outside of `floor` to `cap`; `none`: no correction.
    kind: Literal["none", "truncated", "masked"] = "truncated"
    level: Literal["token", "sequence"] = "token"  # one weight for each token (or step), or one for a whole sample
    cap: Annotated[float, Field(ge=1)] = 2.0  # the largest weight
    floor: Annotated[float, Field(ge=0, le=1)] = 0.5  # the smallest weight that is not masked


class AveragingSettings(Settings):
    """An exponential moving average of the trained weights, which is evaluated and exported in their place."""

    decay: Annotated[float, Field(ge=0, lt=1)] = 0.9  # the share of the average that each optimizer step keeps


class DataSettings(Settings):
    """How prompts with images and videos are decoded and encoded. It changes no result."""

    # Threads that decode and encode the prompts of the next iteration during the update, and the prompts of a rollout
    # side by side; 0: the loop does it, one prompt after the other. null: 4 beside an accelerator; 0 on a CPU, whose
    # cores the update uses.
    workers: Annotated[int, Field(ge=0, le=256)] | None = None
    # Encoded prompts that wait for the next iteration, of each process: more are not begun. One of 1,300 tokens has 25
    # MB.
    ahead_bytes: Positive = 4 * 2**30

    def workers_on(self, device: str) -> int:
        """Returns the number of threads for a type of device, `cpu` or `cuda`."""
        return self.workers if self.workers is not None else 0 if device == "cpu" else WORKERS


class RolloutSettings(Settings):
    """When rollouts are sampled, and which of them are saved for people."""

    # 1: the inference engine, or the processes of `devices`, sample the rollout of the next iteration while this one is
    # learned from. It is then by weights one iteration old, which the section `correction` makes up for. 0: by the
    # present weights. Needs `modality.engine` without `sleep`, or `devices`, and no agent.
    ahead: Literal[0, 1] = 0
    # For images and videos: devices, such as `[cuda:1]`, one for each process of the run on a machine. On each a
    # process of its own with a copy of the network samples ahead.
    devices: list[str] | None = None
    # Iterations between those of which some samples are saved in `rollouts/` to look at: of the best, the worst and the
    # widest group. The first and the last iteration are among them. 0: none.
    saved_every: NotNegative = 20

    def is_saved(self, iteration: int, last: int) -> bool:
        """Returns whether samples of an iteration, counted from 1, are saved; `last`: the run's last one."""
        return self.saved_every > 0 and (iteration in (1, last) or iteration % self.saved_every == 0)


class ScoringSettings(Settings):
    """How rewards are called, and how many failures a run accepts."""

    overlap: bool = True  # score a chunk of groups (`rollout_groups`) while the next is sampled
    # A larger share of samples that a reward could not judge, in an iteration or an evaluation, fails the run; of
    # episodes where there are some.
    max_failed_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    call_seconds: Annotated[float, Field(gt=0, le=1e6)] = CALL_SECONDS  # a longer call of a reward fails the run
    pool: Pool = "threads"  # where rewards with models and judges run: in this process, or in actors of a Ray cluster
    copies: Positive = 1  # actors of each such reward; more than 1 judge several batches of `batch_size` at once
    actors: ActorSettings = ActorSettings()  # of `pool: ray`


class EvaluationSettings(Settings):
    """Held-out evaluation every `every` iterations and at both ends, with the same noise each time."""

    every: NotNegative = 0  # iterations between evaluations; 0: only before and after training
    # Evaluations in a row without a new best held-out score after which the run ends as if it was done; null: no limit.
    stop_after: Positive | None = None
    # The run ends as if it was done where the KL to the reference (`loss/kl`) of three iterations in a row is above
    # this, in the unit of that metric; null: no limit.
    max_kl: Annotated[float, Field(gt=0)] | None = None
    sampler: Plugin  # a sampler of its own, with its own steps and guidance
    # Further samplers for the same prompts, by name: `also: {greedy: {...}}` is reported as `held_out_greedy`.
    also: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")], Plugin] = Field(default={})
    rewards: tuple[Plugin, ...] | None = None  # rewards of its own; null: those of the run
    # The weights that are evaluated; null: the averaged ones, or the trained ones where none are averaged.
    weights: Literal["trained", "averaged", "old"] | None = None
    # Field of the target by whose values the score is reported as well, such as the theme of a prompt; null: none.
    by: str | None = None
    num_prompts: Positive | None = None  # held-out prompts, the first ones; null: all
    samples_per_prompt: Positive = 4  # samples for each held-out prompt and sampler
    saved_samples: NotNegative = 16  # pictures and answers that are saved of each evaluation, spread over the prompts
    seed: int = 123  # of the noise, which is the same in every evaluation

    @field_validator("stop_after")
    @classmethod
    def _needs_some_between(cls, stop_after: int | None, info: ValidationInfo) -> int | None:
        if stop_after is not None and info.data.get("every") == 0:
            raise ValueError("needs evaluations in between: `every` must be at least 1")
        return stop_after


class CheckpointSettings(Settings):
    """When checkpoints are written, and how many are kept. One is always written at the end."""

    # Iterations between checkpoints, beside one after each evaluation that is the best so far; 0: only at the end.
    every: NotNegative = 10
    keep: Positive = 2  # the last checkpoints that are kept, beside the best one


DESCRIBING = ("recipe", "systems")  # sections that say what a config is; no run depends on them


class RunConfig(Settings):
    """All settings of one run."""

    recipe: RecipeSettings | None = None  # what the config is; null: a config of your own, which nobody lists
    # The published systems that it shows, by their names in `mmrl list systems`. A run does not depend on it.
    systems: tuple[str, ...] = ()
    seed: int = 0  # of everything random: prompts, noise, windows, initial LoRA weights
    iterations: Positive  # in one iteration groups are sampled, scored and learned from
    # Seconds of training, without evaluation, after which the run ends as if it was done; null: no limit.
    max_seconds: Annotated[float, Field(gt=0)] | None = None
    # Of frozen weights and of the arithmetic; trained weights are float32 (see `memory.trained_weights`).
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    # Products of float32 numbers in TF32 on an NVIDIA GPU, with 10 bits behind the point, not 23: faster, and changes
    # numbers. `true`: of matrices and convolutions; `false`: none; null: as torch does, of convolutions alone.
    tf32: bool | None = None
    # full: processes share all weights, gradients and optimizer states, a part of each tensor each (FSDP2).
    sharding: Literal["none", "full"] = "none"
    threads: Positive | None = None  # threads of torch on the CPU; null: one for each core
    group_size: Positive  # samples of each prompt, which are compared with each other
    prompts_per_iteration: Positive  # groups of an iteration, over all processes
    # Groups that a process samples at once; the next are sampled while these are scored. Changes memory and time, not
    # the result. null: all.
    rollout_groups: Positive | None = None
    prompts: PromptSettings  # where prompts come from
    data: DataSettings = DataSettings()  # threads that decode and encode prompts
    modality: Plugin  # the policy
    sampler: Plugin  # how groups are sampled
    rewards: Annotated[tuple[Plugin, ...], Field(min_length=1)]  # what judges the samples
    mix: Plugin | None = None  # how the rewards become one number; null: their weighted sum
    advantage: Plugin  # what a score is worth
    loss: Plugin  # what is minimised
    groups: GroupSettings = GroupSettings()  # what happens to degenerate groups
    rollout: RolloutSettings = RolloutSettings()  # when rollouts are sampled
    replay: ReplaySettings | None = None  # samples of earlier iterations for those that teach nothing; null: none
    updates: UpdateSettings = UpdateSettings()  # the optimizer steps of an iteration
    correction: CorrectionSettings = CorrectionSettings()  # the correction for answers of an inference engine
    optimizer: OptimizerSettings = OptimizerSettings()  # the optimizer and its learning rate
    memory: MemorySettings = MemorySettings()  # where the large tensors of training live
    averaging: AveragingSettings | None = None  # an average of the trained weights; null: none
    scoring: ScoringSettings = ScoringSettings()  # how rewards are called
    evaluation: EvaluationSettings | None = None  # held-out evaluation; null: none
    checkpoint: CheckpointSettings = CheckpointSettings()  # when checkpoints are written
    trackers: tuple[Plugin | str, ...] = ()  # where metrics are shown, beside metrics.jsonl
    warm_start: str | None = None  # a run directory, whose last trained weights this run starts from

    @field_validator("systems")
    @classmethod
    def _are_known(cls, named: tuple[str, ...]) -> tuple[str, ...]:
        for name in named:
            if name not in systems.names():
                where = near(name, systems.names()) or "; `mmrl list systems` names those"
                raise ValueError(f"there is no system {name!r}{where}")
        if len(set(named)) < len(named):
            raise ValueError("must name each system once")
        return named


SHIPPED = files("mmrl.configs")
FOLDERS = ("lab", "families")  # of the configs that show one algorithm each, and one family of models each


def shipped_names() -> list[str]:
    """Returns the names of the configs that come with mmrl.

    `lab/NAME` shows one algorithm on an embedded lab, `families/NAME` trains a model of one family of pipelines.
    """
    folders = {"": SHIPPED} | {f"{folder}/": SHIPPED.joinpath(folder) for folder in FOLDERS}
    files_in = [f"{prefix}{item.name}" for prefix, folder in folders.items() for item in folder.iterdir()]
    return sorted(name.removesuffix(".yaml") for name in files_in if name.endswith(".yaml"))


def load_config(config: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Returns the checked settings of a path or a shipped name, with `key.sub=value` overrides.

    Raises ConfigError for a missing file, text that is not YAML, unknown keys, wrong types.
    """
    return _checked(read_yaml(config), overrides)


def check_config(settings: Mapping[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """Returns the checked settings of a mapping, with `key.sub=value` overrides; raises as `load_config` does."""
    try:
        text = yaml.safe_dump(dict(settings))
    except NOT_YAML as error:
        raise ConfigError(f"settings must be numbers, text, lists and mappings, as in YAML: {error}") from error
    return _checked(parse_yaml(text, "the settings"), overrides)  # a deep copy


def _checked(tree: Any, overrides: Sequence[str]) -> RunConfig:
    """Returns the checked settings of a tree, which the overrides change in place."""
    for override in overrides:
        _override(tree, override)
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, "config", RunConfig)) from error
    check_numbers(tree, config, "config")
    return config


def label_of(settings: Mapping[str, Any]) -> Any:
    """Returns the label of a reward in metrics and tables, from the reward's section, unchecked.

    That is the section's `label`, else its name; of a user's own reward, the class or function without the module.
    """
    name = settings["function"] if settings["name"] == "python" and "function" in settings else settings["name"]
    return settings.get("label", str(name).rpartition(":")[2])


def to_yaml(config: RunConfig) -> str:
    """Returns the resolved settings as YAML, which `load_config` reads back to an equal config."""
    # null is written too: where a default is a number, null is a setting of its own
    return dump_yaml(config.model_dump(mode="json"))


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Returns settings as YAML, with the keys in their order."""
    return yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True)


def near_config(name: str) -> str:
    """Returns the end of a message about an unknown config: the nearest shipped name, or where names are listed."""
    return near(name, shipped_names()) or "; `mmrl list configs` names those"


def read_yaml(config: str | Path) -> dict[str, Any]:
    """Returns the unchecked settings of a path or a shipped name.

    Raises ConfigError for a name of no config, a file that cannot be read, or one that holds no mapping.
    """
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
