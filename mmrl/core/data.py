"""What flows through a run: prompts, rollouts, scores. All frozen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self, get_args

import torch
from torch import Tensor

from mmrl.core.decisions import DecisionBlock, Paths, after, cat_shifted, count_calls
from mmrl.core.dense import join_dense
from mmrl.core.keys import GroupKey, prompt_index_of, subgroup
from mmrl.core.outputs import Outcome, Outputs
from mmrl.media.pictures import Clip, Picture

__all__ = [
    "DecisionBlock",
    "Outcome",
    "Outputs",
    "Paths",
    "count_calls",
    "prompt_index_of",
    "subgroup",
]  # which most look for here

WeightsName = Literal["trained", "old", "reference", "averaged"]
# What a reward gives a number for: dense ones (the last three, `dense.DENSE`) for decisions of a sample.
Granularity = Literal["sample", "turn", "episode", "group", "step", "segment", "token"]


@dataclass(frozen=True)
class Prompt:
    """What the policy is asked, and what rewards need to judge its answers.

    `<image>` and `<video>` in the text are where images and videos stand; without such marks they come first, videos
    before images.
    """

    text: str
    media: tuple[Picture, ...] = ()  # images that belong to the question, in order
    target: Mapping[str, Any] = field(default_factory=dict)  # what rewards need: boxes, answers ...
    system: str | None = None  # a system message of its own; None: the policy's
    clips: tuple[Clip, ...] = ()  # videos that belong to the question, in order
    source: str = field(default="", compare=False)  # file and line, for errors


@dataclass(frozen=True)
class Observation:
    """What an agent sees after a reset or a step; its actions are in pixels of the screenshot."""

    screenshot: Picture
    text: str = ""  # what the environment says beside it, such as an error
    is_done: bool = False  # the episode is over
    reward: float = 0.0  # for the step that led here
    goal: str | None = None  # of a reset: the task in words, where the prompt does not say it


class Trace(Protocol):
    """What a policy needs to evaluate the decisions of a rollout again; only the policy looks inside."""

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self: ...


def _nothing() -> Tensor:
    """Stands for "the same for all samples" until the number of samples is known."""
    return torch.empty(0, dtype=torch.int64)


def _fill_index(samples: "Rollout | Scores") -> None:
    """Gives every sample what was left out: no anchor state, and that it is learned from."""
    count = len(samples.group)
    if len(samples.anchor) != count:
        object.__setattr__(samples, "anchor", torch.full((count,), -1))
    if len(samples.is_control) != count or samples.is_control.dtype != torch.bool:
        object.__setattr__(samples, "is_control", torch.zeros(count, dtype=torch.bool))


@dataclass(frozen=True)
class Rollout:
    """P prompts, B samples drawn for them, and the trace behind them. All index tensors are on the CPU."""

    prompts: tuple[Prompt, ...]  # P
    keys: tuple[GroupKey, ...]  # P
    prompt: Tensor  # [B] int64: index into prompts
    group: Tensor  # [B] int64: which samples are compared; the key's draw number, or one of its `keys.subgroup`s
    episode: Tensor  # [B] int64: the sample's own number where there are no episodes
    turn: Tensor  # [B] int64
    outputs: Outputs  # B
    blocks: tuple[DecisionBlock, ...]
    trace: Any  # a Trace of the policy
    num_calls: int  # network calls (batch elements) that drew it
    anchor: Tensor = field(default_factory=_nothing)  # [B] int64: names the state that a turn began in; -1: none
    is_control: Tensor = field(default_factory=_nothing)  # [B] bool: drawn to compare with, never learned from
    counts: Mapping[str, int] = field(
        default_factory=dict
    )  # metrics that are sums over a rollout, such as calls/prompt_reads
    # noise levels that its sampler called the network at, falling; of given outputs those of the timesteps that the
    # network was trained at; none: tokens, given outputs of a flow
    levels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _fill_index(self)

    @property
    def num_samples(self) -> int:
        return len(self.group)

    @property
    def prompt_index(self) -> Tensor:
        """[B] int64: the draw number of each sample's key; mostly its group."""
        return prompt_index_of(self.group)

    def statistics(self) -> dict[str, Tensor]:
        """What a run logs the mean of, beside what rewards say: a number per sample or episode, controls left out."""
        counted = ~self.is_control
        statistics = {name: values[counted.to(values.device)] for name, values in self.outputs.statistics().items()}
        if self.outputs.outcomes is not None:
            outcomes = self.outputs.outcomes
            ends = [row for row in counted.nonzero()[:, 0].tolist() if outcomes[row] is not None]
            statistics["episodes/turns"] = (self.turn[ends] + 1).double()
            for name in get_args(Outcome):
                statistics[f"episodes/{name}"] = torch.tensor([outcomes[row] == name for row in ends]).double()
        return statistics

    @classmethod
    def join(cls, parts: "Sequence[Rollout]") -> "Rollout":
        """One rollout of all samples of the parts, in order; call, edge, episode and prompt numbers are shifted."""
        if len(parts) == 1:
            return parts[0]
        blocks = tuple(DecisionBlock.join([part.blocks[n] for part in parts]) for n in range(len(parts[0].blocks)))
        return cls(
            prompts=tuple(prompt for part in parts for prompt in part.prompts),
            keys=tuple(key for part in parts for key in part.keys),
            prompt=cat_shifted([part.prompt for part in parts], [len(part.prompts) for part in parts]),
            group=torch.cat([part.group for part in parts]),
            episode=cat_shifted([part.episode for part in parts], [part.num_samples for part in parts]),
            turn=torch.cat([part.turn for part in parts]),
            outputs=Outputs.join([part.outputs for part in parts]),
            blocks=blocks,
            trace=type(parts[0].trace).join([part.trace for part in parts]),
            num_calls=sum(part.num_calls for part in parts),
            anchor=torch.cat([part.anchor for part in parts]),
            is_control=torch.cat([part.is_control for part in parts]),
            counts={name: sum(part.counts[name] for part in parts) for name in parts[0].counts},
            levels=max((part.levels for part in parts), key=len),
        )


@dataclass(frozen=True)
class Scores:
    """What the rewards say of B samples. On every process after the gather, in draw order."""

    values: Tensor  # [B, R] float32; of a dense reward the sum over the sample's decisions
    names: tuple[str, ...]  # R
    weights: tuple[float, ...]  # R
    valid: Tensor  # [B] bool: False where a turn of its episode could not be judged, and for a control
    group: Tensor  # [B] int64: which samples are compared, see `Rollout.group`
    episode: Tensor  # [B] int64
    turn: Tensor  # [B] int64
    anchor: Tensor = field(default_factory=_nothing)  # [B] int64; -1: none
    is_control: Tensor = field(default_factory=_nothing)  # [B] bool
    granularities: tuple[Granularity, ...] = ()  # R: what each reward judges as one; empty: samples
    mix: Any = None  # the `contracts.Mix` that makes one number of them; None: their weighted sum
    # [B, K] float32 by the names of the dense rewards: what they say of each decision; NaN where they say nothing
    dense: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _fill_index(self)

    @property
    def prompt_index(self) -> Tensor:
        """[B] int64: the draw that each sample belongs to; mostly its group."""
        return prompt_index_of(self.group)

    @property
    def share(self) -> Tensor:
        """[B] float64: what a valid sample counts in means over episodes, one over the valid turns of its episode."""
        return self.share_of(self.valid)

    def share_of(self, counted: Tensor) -> Tensor:
        """[B] float64: the same where the samples `counted` [B] bool are meant, 0 for all others."""
        _, place = self.episode.unique(return_inverse=True)
        valid = counted.double()
        turns = valid.new_zeros(int(place.max()) + 1 if len(place) else 0).index_add(0, place, valid)
        return valid / turns[place].clamp(min=1)

    @property
    def has_failed(self) -> Tensor:
        """[B] bool: a reward that counts could not judge it."""
        return ~self.valid & ~self.is_control

    @property
    def total(self) -> Tensor:
        """[B] what is learned from: the rewards mixed, without a mix their weighted sum."""
        return self.weighted_sum if self.mix is None else self.mix(self)

    @property
    def weighted_sum(self) -> Tensor:
        """[B] weighted sum of the rewards; a reward of weight 0 is only watched."""
        weights = self.values.new_tensor(self.weights)
        return torch.where(weights != 0, self.values * weights, torch.zeros_like(self.values)).sum(1)

    def of(self, name: str) -> "Scores":
        """The same samples as if the reward `name` were the only one, with weight 1."""
        column = self.names.index(name)
        return replace(
            self,
            values=self.values[:, column : column + 1],
            names=(name,),
            weights=(1.0,),
            granularities=self.granularities[column : column + 1],
            mix=None,
            dense={key: numbers for key, numbers in self.dense.items() if key == name},
        )

    def select(self, rows: Tensor) -> "Scores":
        """The scores of the samples `rows` [n] (indices or a bool mask)."""
        return replace(
            self,
            values=self.values[rows],
            valid=self.valid[rows],
            group=self.group[rows],
            episode=self.episode[rows],
            turn=self.turn[rows],
            anchor=self.anchor[rows],
            is_control=self.is_control[rows],
            dense={name: numbers[rows] for name, numbers in self.dense.items()},
        )

    @classmethod
    def join(cls, parts: "Sequence[Scores]") -> "Scores":
        """The scores of all parts, in order; episode numbers are shifted."""
        # a part without samples does not know the weights of its iteration
        first = next((part for part in parts if len(part.group)), parts[0])
        return replace(
            first,
            values=torch.cat([part.values for part in parts]),
            valid=torch.cat([part.valid for part in parts]),
            group=torch.cat([part.group for part in parts]),
            episode=cat_shifted([part.episode for part in parts], [after(part.episode) for part in parts]),
            turn=torch.cat([part.turn for part in parts]),
            anchor=torch.cat([part.anchor for part in parts]),
            is_control=torch.cat([part.is_control for part in parts]),
            dense=join_dense([part.dense for part in parts]),
        )
