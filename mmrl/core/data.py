"""The values that flow through a run: prompts, outputs, decisions, rollouts, scores. All are frozen."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, Self, get_args, runtime_checkable

import torch
from torch import Tensor

from mmrl.core.dense import join_dense
from mmrl.core.keys import GroupKey, prompt_index_of
from mmrl.media.pictures import Clip, Picture, Role
from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas
from mmrl.system.host_memory import on_host

WeightsName = Literal["trained", "old", "reference", "averaged"]
# What one number of a reward is about; of the last three, those of dense rewards (`dense.DENSE`), a sample has several.
Granularity = Literal["sample", "turn", "episode", "group", "step", "segment", "token"]
# How an episode ended: the environment ended it; it reached the limit of turns; too many answers in a row were no
# action; the environment broke or hung.
Outcome = Literal["done", "turn_limit", "invalid_limit", "failed"]


@dataclass(frozen=True)
class Prompt:
    """The input of a policy, and the target that rewards judge its samples by."""

    # `<image>` and `<video>` mark the places of the media; without marks the media come first, videos before images.
    text: str
    media: tuple[Picture, ...] = ()  # images, in the order of their marks
    target: Mapping[str, Any] = field(default_factory=dict)  # fields that rewards need: boxes, answers ...
    system: str | None = None  # a system message for this prompt; None: that of the policy
    clips: tuple[Clip, ...] = ()  # videos, in the order of their marks
    source: str = field(default="", compare=False)  # file and line that the prompt comes from, for errors
    roles: tuple[Role, ...] = ()  # of the images, in order; (): the data does not say


@dataclass(frozen=True)
class Observation:
    """The state of an environment as an agent sees it, after a reset or a step."""

    screenshot: Picture  # actions are in pixels of this picture
    text: str = ""  # a message of the environment, such as an error
    is_done: bool = False  # the episode is over
    reward: float = 0.0  # for the last step
    goal: str | None = None  # after a reset: the task in words; None: the prompt holds it


@dataclass(frozen=True)
class Outputs:
    """The outputs of B samples. A field is None where the samples have no such output."""

    images: Tensor | None = None  # [B, 3, H, W] in [0, 1], RGB
    videos: Tensor | None = None  # [B, F, 3, H, W] in [0, 1], RGB
    fps: tuple[float, ...] | None = None  # B: frames per second of the videos
    audio: Tensor | None = None  # [B, channels, S] float32 in [-1, 1]: the sound of the videos
    audio_rate: tuple[int, ...] | None = None  # B: samples per second of the sound
    texts: tuple[str, ...] | None = None  # B answers, without the end token
    is_finished: Tensor | None = None  # [B] bool: the answer ended by itself; False: it was cut at the token limit
    num_tokens: Tensor | None = None  # [B] int64: length of the answers, the end token included
    # B: the text of each token of an answer; joined, they are the answer. The end token has an empty text. A character
    # that several tokens make belongs to the last of them.
    pieces: tuple[tuple[str, ...], ...] | None = None
    canvases: tuple[Canvas | None, ...] | None = None  # B: the first image of the prompt and the unit of coordinates
    actions: tuple[Action | None, ...] | None = None  # B: the action that an answer names; None: not understood
    step_rewards: Tensor | None = None  # [B] float32: the environment's reward for the turn's action
    outcomes: tuple[Outcome | None, ...] | None = None  # B: how the episode ended; None: not in this turn
    screens: tuple[Picture | None, ...] | None = None  # B: the screen after the turn; None: the environment broke
    given: Tensor | None = None  # [B] int64: place among the outputs that the prompt brings; -1: it was sampled
    # [B, ...]: the clean latents that images or videos were decoded from, in the network's own form
    latents: Tensor | None = None
    # B: the outputs of each sample alone, where they have several sizes; then all other fields are None. `select` of
    # samples of one size returns their tensors.
    each: "tuple[Outputs, ...] | None" = None

    @classmethod
    def join(cls, parts: "Sequence[Outputs]") -> "Outputs":
        """Returns the outputs of all parts, in order; see `each` where their sizes differ."""
        if any(part.each is not None for part in parts) or len({part.size for part in parts}) > 1:
            return cls(each=tuple(one for part in parts for one in part._alone()))
        return cls(**{item.name: _join_values([getattr(part, item.name) for part in parts]) for item in fields(cls)})

    @classmethod
    def filled(cls, parts: "Iterable[Outputs]", count: int) -> "Outputs":
        """Returns the outputs of `count` samples, from parts that are made one after the other.

        As `join`, but each tensor is filled part by part: the outputs are held once, and beside them one part.
        """
        whole: dict[str, Any] = {}
        start, left = 0, iter(parts)
        while start < count:
            part = next(left)
            for item in fields(cls):
                value = getattr(part, item.name)
                if isinstance(value, Tensor) and len(value) < count:
                    held = whole.setdefault(item.name, value.new_empty(count, *value.shape[1:]))
                    held[start : start + len(value)] = value
                elif value is not None:
                    whole[item.name] = value if isinstance(value, Tensor) else whole.get(item.name, ()) + value
            start += part.num_samples
            del part, value  # else they would be held while the next part is made
        return cls(**whole)

    @property
    def num_samples(self) -> int:
        """B; 0 where no field is set."""
        return next((len(value) for item in fields(self) if (value := getattr(self, item.name)) is not None), 0)

    def without_videos(self) -> "Outputs":
        """Returns the outputs without videos and their sound, the largest tensors of a rollout, and without latents."""
        each = None if self.each is None else tuple(one.without_videos() for one in self.each)
        return replace(self, videos=None, fps=None, audio=None, audio_rate=None, latents=None, each=each)

    def on_host(self) -> "Outputs":
        """Returns the outputs with their images and latents in the CPU's memory."""
        each = None if self.each is None else tuple(one.on_host() for one in self.each)
        images, latents = (None if one is None else on_host(one) for one in (self.images, self.latents))
        return replace(self, images=images, latents=latents, each=each)

    def with_given(self, given: Tensor) -> "Outputs":
        """Returns the outputs with their places among those that the prompts bring, [B] int64; see the field."""
        if self.each is None:
            return replace(self, given=given)
        return replace(self, each=tuple(replace(one, given=given[n : n + 1]) for n, one in enumerate(self.each)))

    @property
    def size(self) -> tuple[tuple[int, ...], ...]:
        """The sizes of a sample's media, which must agree for samples to lie in one tensor."""
        media = (self.images, self.videos, self.audio, self.latents)
        return tuple(tuple(one.shape[1:]) for one in media if one is not None)

    def rows_by_size(self) -> list[Tensor]:
        """Returns the samples, [n] int64 each, of each size of media, in the order in which sizes first appear.

        Only for outputs of several sizes.
        """
        rows: dict[Any, list[int]] = {}
        for row, one in enumerate(self.each or ()):
            rows.setdefault(one.size, []).append(row)
        return [torch.tensor(alike) for alike in rows.values()]

    def _alone(self) -> "list[Outputs]":
        """Returns the outputs of each sample."""
        if self.each is not None:
            return list(self.each)
        return [self.select(torch.tensor([row])) for row in range(self.num_samples)]

    def statistics(self) -> dict[str, Tensor]:
        """Returns numbers [B] in float64, by the names of the metrics that are their means."""
        known: dict[str, Tensor | None] = {
            "answers/tokens": self.num_tokens,
            "answers/finished": self.is_finished,
            "answers/understood": None if self.actions is None else torch.tensor([a is not None for a in self.actions]),
        }
        return {name: values.double() for name, values in known.items() if values is not None}

    def select(self, rows: Tensor) -> "Outputs":
        """Returns the outputs of the samples `rows`, [n] int64."""
        if self.each is not None:
            return Outputs.join([self.each[row] for row in rows.tolist()])
        return Outputs(**{item.name: _select_values(getattr(self, item.name), rows) for item in fields(self)})


@dataclass(frozen=True)
class DecisionBlock:
    """The decisions of one kind of B samples, at most K of each: denoising steps, or tokens.

    A decision is an edge of the tree of samples; samples that share an edge have the same number there. A rollout with
    decisions of two kinds has two blocks.
    """

    call: Tensor  # [B, K] int64: number of the network call before each decision; -1: no decision
    edge: Tensor  # [B, K] int64: number of the decision itself; -1: no decision
    weight: Tensor  # [B, K] float32: 1 / (number of samples that share the edge); 0: no decision
    facts: Mapping[str, Tensor] = field(default_factory=dict)  # [B, K] float32 each, see `Paths`

    @classmethod
    def none(cls, num_samples: int) -> "DecisionBlock":
        """Returns the block of samples without decisions: K = 0."""
        empty = torch.zeros(num_samples, 0, dtype=torch.int64)
        return cls(empty, empty, empty.float())

    @property
    def paths(self) -> "Paths":
        """What an advantage may know of the decisions."""
        return Paths(self.edge, self.facts)

    def select(self, rows: Tensor) -> "DecisionBlock":
        """Returns the decisions of the samples `rows`, [n] int64, with their numbers."""
        facts = {name: values[rows] for name, values in self.facts.items()}
        return DecisionBlock(self.call[rows], self.edge[rows], self.weight[rows], facts)

    def weight_among(self, takes_part: Tensor) -> Tensor:
        """Returns what each decision counts, [B, K] float32, where some samples or decisions take no part.

        That is 1 / (number of samples that share the decision and take part in it); 0 where `takes_part` ([B, 1] or
        [B, K]) is not above 0.
        """
        counted = (self.edge >= 0) & (takes_part > 0)
        leaves = torch.bincount(self.edge[counted], minlength=1)
        return torch.where(counted, 1 / leaves[self.edge.clamp(min=0, max=len(leaves) - 1)], torch.zeros(()))

    def with_fact(self, name: str, values: Tensor) -> "DecisionBlock":
        """Returns the decisions with one more fact, [B, K] float32, which is 0 where there is no decision."""
        known = torch.where(self.edge >= 0, values, torch.zeros(()))
        return DecisionBlock(self.call, self.edge, self.weight, {**self.facts, name: known})

    @classmethod
    def join(cls, blocks: "Sequence[DecisionBlock]") -> "DecisionBlock":
        """Returns the decisions of all blocks, in order; the numbers of calls and edges are shifted to stay unique."""
        width = max(block.call.shape[1] for block in blocks)
        paths = Paths.join([block.paths for block in blocks])
        return cls(
            call=cat_shifted([_widened(b.call, width, -1) for b in blocks], [count_calls(b) for b in blocks]),
            edge=cat_shifted([_widened(b.edge, width, -1) for b in blocks], [after(b.edge) for b in blocks]),
            weight=torch.cat([_widened(b.weight, width, 0) for b in blocks]),
            facts=paths.facts,
        )


@dataclass(frozen=True)
class Paths:
    """What an advantage may know of the decisions of B samples, at most K of each.

    Facts of denoising steps: `step` (its number on the grid), `sigma` and `sigma_next` (noise levels in [0, 1]), `std`
    (of the step's noise). Facts of tokens, where the policy records them: `log_prob` (nats, under the distribution that
    the token was sampled from) and `entropy` (nats, of that distribution); and, where an advantage requires it,
    `spread` (nats, how far apart the answers of the group are there). Facts are 0 where there is no decision.
    """

    edge: Tensor  # [B, K] int64: unique within a prompt's samples, equal where samples share a decision; -1: none
    facts: Mapping[str, Tensor] = field(default_factory=dict)  # [B, K] float32 each

    def __getitem__(self, rows: Tensor | list[int]) -> "Paths":
        """Returns the paths of the samples `rows` [n]."""
        return Paths(self.edge[rows], {name: values[rows] for name, values in self.facts.items()})

    @classmethod
    def join(cls, parts: "Sequence[Paths]") -> "Paths":
        """Returns the paths of all parts, in order, as wide as the widest; the numbers of edges stay as they are."""
        width = max(part.edge.shape[1] for part in parts)
        known = [set(part.facts) for part in parts if part.edge.shape[1]]  # without decisions there is nothing to know
        facts = {
            name: torch.cat([_widened(part.facts.get(name, part.edge[:, :0].float()), width, 0) for part in parts])
            for name in sorted(set.intersection(*known) if known else ())
        }
        return cls(torch.cat([_widened(part.edge, width, -1) for part in parts]), facts)


def count_calls(block: DecisionBlock) -> int:
    """Returns the number of network calls that one pass over the block's decisions takes."""
    return after(block.call)


def after(numbers: Tensor) -> int:
    """Returns the first number above all of these numbers; 0 for an empty tensor."""
    return int(numbers.max()) + 1 if numbers.numel() else 0


def cat_shifted(parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Concatenates index tensors, each shifted by the sum of the sizes before it; -1 stays -1."""
    offsets = [sum(sizes[:n]) for n in range(len(sizes))]
    return torch.cat([torch.where(p >= 0, p + offset, p) for p, offset in zip(parts, offsets, strict=True)])


def _widened(table: Tensor, width: int, fill: int) -> Tensor:
    return torch.nn.functional.pad(table, (0, width - table.shape[1]), value=fill)


class Trace(Protocol):
    """The part of a rollout from which the policy evaluates its decisions again; only that policy reads it."""

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Returns the traces of all parts as one, in order."""
        ...


@runtime_checkable
class Movable(Protocol):
    """A trace whose large tensors may be in the CPU's memory. Optional."""

    def on_host(self) -> Self:
        """Returns the same trace with its large tensors in the CPU's memory."""
        ...


def _nothing() -> Tensor:
    """Returns an empty tensor, for a field that has its default for all samples."""
    return torch.empty(0, dtype=torch.int64)


def _fill_index(samples: "Rollout | Scores") -> None:
    """Sets fields that were left out to their defaults: no anchor state, and no controls."""
    count = len(samples.group)
    if len(samples.anchor) != count:
        object.__setattr__(samples, "anchor", torch.full((count,), -1))
    if len(samples.is_control) != count or samples.is_control.dtype != torch.bool:
        object.__setattr__(samples, "is_control", torch.zeros(count, dtype=torch.bool))


@dataclass(frozen=True)
class Rollout:
    """P prompts, B samples of them, and the policy's trace of the sampling. All index tensors are on the CPU."""

    prompts: tuple[Prompt, ...]  # P
    keys: tuple[GroupKey, ...]  # P
    prompt: Tensor  # [B] int64: index into prompts
    # [B] int64: samples of one number are compared with each other; the prompt index of the key, or a `keys.subgroup`
    # of it
    group: Tensor
    episode: Tensor  # [B] int64: turns of one number belong to one episode; elsewhere each sample has its own number
    turn: Tensor  # [B] int64: the place of a turn in its episode, counted from 0
    outputs: Outputs  # B
    blocks: tuple[DecisionBlock, ...]  # the decisions, one block for each kind
    trace: Any  # a Trace of the policy
    num_calls: int  # network calls that sampling took, in batch elements
    anchor: Tensor = field(default_factory=_nothing)  # [B] int64: number of the state that a turn began in; -1: none
    # [B] bool: a sample beside its group, which enters no statistic of it: to compare with, or to imitate
    is_control: Tensor = field(default_factory=_nothing)
    # Metrics that are sums over rollouts, such as calls/prompt_reads.
    counts: Mapping[str, int] = field(default_factory=dict)
    # Noise levels at which the sampler called the network, falling, of each prompt index: they depend on the size of
    # the samples. Of offline outputs: those of the timesteps that the network was trained at. None of tokens, and of
    # offline outputs of a flow.
    levels: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _fill_index(self)

    @property
    def num_samples(self) -> int:
        """B."""
        return len(self.group)

    def on_host(self) -> "Rollout":
        """Returns the rollout with its images and latents in the CPU's memory; a policy moves what it computes with."""
        trace = self.trace.on_host() if isinstance(self.trace, Movable) else self.trace
        return replace(self, outputs=self.outputs.on_host(), trace=trace)

    def without_videos(self) -> "Rollout":
        """Returns the rollout without the pixels and the sound of its videos, which nothing needs once they are judged.

        A loss on outputs renders them again. Latents are left out as well: the trace has them.
        """
        return replace(self, outputs=self.outputs.without_videos())

    @property
    def prompt_index(self) -> Tensor:
        """[B] int64: the prompt index of each sample; `group`, except for a prompt of several groups."""
        return prompt_index_of(self.group)

    def statistics(self) -> dict[str, Tensor]:
        """Returns numbers of samples or episodes without controls, in float64, by the metrics that are their means."""
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
        """Returns one rollout of all samples of the parts, in order.

        The numbers of calls, edges, episodes and prompts are shifted to stay unique.
        """
        if len(parts) == 1:
            return parts[0]  # its tensors are not copied
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
            levels={
                index: max((part.levels.get(index, ()) for part in parts), key=len)
                for index in dict.fromkeys(index for part in parts for index in part.levels)
            },
        )


@dataclass(frozen=True)
class Scores:
    """The rewards of B samples. After the gather they are those of all processes, in the order of the prompts."""

    values: Tensor  # [B, R] float32; of a dense reward the sum over the sample's decisions
    names: tuple[str, ...]  # R labels
    weights: tuple[float, ...]  # R, at this iteration
    valid: Tensor  # [B] bool: False for a control, and where a reward could not judge a turn of the sample's episode
    group: Tensor  # [B] int64: see `Rollout.group`
    episode: Tensor  # [B] int64: see `Rollout.episode`
    turn: Tensor  # [B] int64: see `Rollout.turn`
    anchor: Tensor = field(default_factory=_nothing)  # [B] int64: see `Rollout.anchor`
    is_control: Tensor = field(default_factory=_nothing)  # [B] bool: see `Rollout.is_control`
    granularities: tuple[Granularity, ...] = ()  # R; empty: all rewards judge samples
    mix: Any = None  # the `contracts.Mix` that makes one total of the rewards; None: their weighted sum
    # [B, K] float32 by the labels of the dense rewards: the number of each decision; NaN where there is none
    dense: Mapping[str, Tensor] = field(default_factory=dict)
    # [B, D] float32 by the labels of the fitted rewards: what each learns from a sample; NaN: nothing
    examples: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _fill_index(self)

    @property
    def prompt_index(self) -> Tensor:
        """[B] int64: the prompt index of each sample; `group`, except for a prompt of several groups."""
        return prompt_index_of(self.group)

    @property
    def share(self) -> Tensor:
        """[B] float64: what a sample counts in a mean over episodes: 1 / (valid turns of its episode), 0 if invalid."""
        return self.share_of(self.valid)

    def share_of(self, counted: Tensor) -> Tensor:
        """Returns [B] float64: 1 / (turns of its episode that are `counted`, [B] bool); 0 for a turn that is not."""
        _, place = self.episode.unique(return_inverse=True)
        valid = counted.double()
        turns = valid.new_zeros(int(place.max()) + 1 if len(place) else 0).index_add(0, place, valid)
        return valid / turns[place].clamp(min=1)

    @property
    def has_failed(self) -> Tensor:
        """[B] bool: a reward with a weight could not judge the sample."""
        return ~self.valid & ~self.is_control

    @property
    def total(self) -> Tensor:
        """[B]: one number for each sample, of all its rewards: that of the mix, or their weighted sum."""
        return self.weighted_sum if self.mix is None else self.mix(self)

    @property
    def weighted_sum(self) -> Tensor:
        """[B]: the weighted sum of the rewards; a reward of weight 0 may hold anything, NaN included."""
        weights = self.values.new_tensor(self.weights)
        return torch.where(weights != 0, self.values * weights, torch.zeros_like(self.values)).sum(1)

    def of(self, name: str) -> "Scores":
        """Returns the scores of the same samples as if the reward `name` were the only one, with weight 1."""
        column = self.names.index(name)
        return replace(
            self,
            values=self.values[:, column : column + 1],
            names=(name,),
            weights=(1.0,),
            granularities=self.granularities[column : column + 1],
            mix=None,
            dense={key: numbers for key, numbers in self.dense.items() if key == name},
            examples={key: rows for key, rows in self.examples.items() if key == name},
        )

    def select(self, rows: Tensor) -> "Scores":
        """Returns the scores of the samples `rows`, [n] int64 indices or [B] bool."""
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
            examples={name: one[rows] for name, one in self.examples.items()},
        )

    @classmethod
    def join(cls, parts: "Sequence[Scores]") -> "Scores":
        """Returns the scores of all parts, in order; the numbers of episodes are shifted to stay unique."""
        # a part without samples has no weights of its iteration
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
            examples=join_dense([part.examples for part in parts]),
        )


def _join_values(parts: Sequence[Any]) -> Any:
    """Returns the tensors or tuples of all parts as one; None where no part has any."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    if isinstance(present[0], Tensor):
        return torch.cat(present)
    return tuple(value for part in present for value in part)


def _select_values(values: Any, rows: Tensor) -> Any:
    if values is None:
        return None
    if isinstance(values, Tensor):
        return values[rows.to(values.device)]
    return tuple(values[row] for row in rows.tolist())
