"""What a plug-in is: the protocols between the core and modalities, samplers, rewards, advantages and losses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from mmrl.core.data import Granularity, Observation, Outputs, Paths, Prompt, Rollout, Scores, WeightsName
from mmrl.core.forward_outputs import ForwardOutputs
from mmrl.core.keys import GroupKey
from mmrl.core.rewards import Checking, Holding, Mix, Reward, RewardBatch, Segmented
from mmrl.core.views import View
from mmrl.core.weights import Weights
from mmrl.parsing.actions.action import Action
from mmrl.system.errors import ConfigError, DivergedError, RunError

__all__ = [  # what a plug-in raises, says of itself, and all that rewards are
    "Checking",
    "ConfigError",
    "DivergedError",
    "Granularity",
    "Holding",
    "Mix",
    "Reward",
    "RewardBatch",
    "RunError",
    "Segmented",
]

Scope = Literal["decision", "path", "group"]
SampleKind = Literal["latents", "tokens", "turns"]
# media made anew for the samples [N] -> their scores [N], in a graph
DifferentiableScore = Callable[[Outputs, Tensor], Tensor]


@dataclass(frozen=True)
class Placement:
    """Where and how a plug-in's weights live; made by the engine, handed to `prepare`."""

    device: torch.device
    dtype: torch.dtype  # of frozen weights and of autocast; trained weights are float32
    # Where weights are sharded, a network call is one of all processes: this gives the largest of the counts that they
    # ask with, and those with fewer calls to make fill up with idle ones. None: every process calls as it likes.
    maximum: Callable[[int], int] | None = None


class Modality(Protocol):
    """A policy: a modality adapter bound to a model. Construction checks settings; `prepare` loads weights."""

    forward_kinds: ClassVar[frozenset[str]]  # kinds of forward outputs, of "decisions", "denoising", "outputs"
    sample_kind: ClassVar[SampleKind]  # what its samples are made of
    makes: ClassVar[frozenset[str]]  # fields of `Outputs` that its rollouts hold: what rewards may need
    num_calls: int  # network evaluations so far, in batch elements

    def prepare(self, placement: Placement) -> None: ...
    def tiny(self, seed: int, folder: Path) -> Self:
        """The same class on a random twin of small sizes, written to `folder`, every part present."""
        ...

    def rollout(self, prompts: Sequence[Prompt], plans: Sequence[Any], keys: Sequence[GroupKey]) -> Rollout:
        """Draws one group per prompt by its plan, without a graph, with the weights now in place."""
        ...

    def offline(self, prompts: Sequence[Prompt], outputs: Outputs, keys: Sequence[GroupKey]) -> Rollout:
        """A rollout of supplied outputs, one per prompt, without decisions: SFT, offline pairs, replay."""
        ...

    def forward(self, rollout: Rollout, view: View) -> ForwardOutputs:
        """The forward outputs of the view under the weights now in place; with autograd unless it is switched off
        around."""
        ...

    def recorded(self, rollout: Rollout, view: View) -> ForwardOutputs:
        """The same of the weights that drew the rollout, from its trace, without a network call."""
        ...

    def recompute(self, rollout: Rollout, size: int) -> Rollout:
        """The rollout with what `recorded` gives evaluated again, `size` network calls at a time."""
        ...

    @property
    def weights(self) -> Weights:
        """The trained tensors and their copies; `with policy.weights("old"): ...` puts a copy in place."""
        ...

    def modules(self) -> Mapping[str, nn.Module]:
        """The modules with trained weights."""
        ...

    def export(self, folder: Path) -> None:
        """Writes what other tools load: a plain model folder, or an adapter."""
        ...


@dataclass(frozen=True)
class Usage:
    """How an export is loaded and used with the library that it is for: the middle of its model card."""

    library: str  # as the hub calls it: diffusers, transformers, peft
    task: str  # as the hub calls it: text-to-image, image-text-to-text ...
    trained: str  # what of the model was trained, in words
    is_adapter: bool  # a LoRA, which needs the model that was trained
    code: str  # Python that runs in the exported folder
    notes: tuple[str, ...] = ()  # sentences: what the code leaves out, and how its result is read


@runtime_checkable
class Loadable(Protocol):
    """Modalities whose exports other libraries load have this too, after `prepare`."""

    def usage(self, prompt: Prompt, plan: Any, base: str) -> Usage:
        """How the export draws or answers such a prompt as the plan does (None: there is none to follow).

        `base`: Python for what `from_pretrained` takes to load the model that was trained.
        """
        ...


@runtime_checkable
class Reader(Protocol):
    """Policies whose prompts are not only text have this too, after `prepare`."""

    def refusal(self, prompt: Prompt) -> str | None:
        """Why it cannot read a prompt, as far as texts and headers tell; None where they say nothing against it."""
        ...

    def unreadable(self, prompt: Prompt) -> str | None:
        """The same with the prompt read as a whole."""
        ...


@dataclass(frozen=True)
class Cut:
    """What a text encoder reads of a prompt that is longer than it can read."""

    encoder: str  # its family, such as CLIP
    num_read: int  # tokens, the first ones, without those at the ends
    num_tokens: int  # of the whole prompt
    end: str  # the last words that are read


@runtime_checkable
class Cutting(Protocol):
    """Modalities that read only the beginning of a long prompt have this too, after `prepare`."""

    def cuts(self, texts: Sequence[str]) -> Sequence[tuple[Cut, ...]]:
        """By which encoders each text is cut, and where; () for one that is read whole."""
        ...


@runtime_checkable
class Shardable(Protocol):
    """Modalities whose weights can be sharded have this too.

    Each network call is then made by all processes, in the same order. `rollout`, `recompute` and `forward` ask
    `Placement.maximum` how many calls there are, and make up for missing ones; `forward` makes the calls of
    `dummy_forward`.
    """

    def networks(self) -> Sequence[nn.Module]:
        """The parts of `modules()` that are called, each a tree of its own."""
        ...

    def dummy_forward(self) -> Tensor:
        """Takes part in one `forward` of others; returns 0, with a graph to all trained weights."""
        ...

    def dummy_rollout(self, plan: Any) -> None:
        """Takes part in one `rollout` of others by plans like this one."""
        ...


@runtime_checkable
class EngineTwinned(Protocol):
    """Modalities whose samples an inference engine may draw have this too."""

    def with_tiny_engine(self) -> Self:
        """Returns the same policy with a small engine on this machine in the place of its own, if it has one."""
        ...


@runtime_checkable
class PromptSharing(Protocol):
    """Modalities whose updates run a prompt once for several answers have this too, after `prepare`."""

    @property
    def sharing_used(self) -> str:
        """How an update shares prompts, and why not where it does not."""
        ...


@runtime_checkable
class Differentiable(Protocol):
    """Modalities that evaluate outputs have this too: gradients of rewards reach their samples, and what was drawn.

    `records_trajectories` is set by the core where a loss needs such gradients: rollouts then keep what they start
    from.
    """

    records_trajectories: bool

    def differentiate(self, rollout: Rollout, rows: Tensor, score: DifferentiableScore, size: int) -> Rollout:
        """The rollout with the gradient of the scores of the samples `rows` with respect to what each of their
        decisions drew, by the weights now in place, `size` network calls at a time; `forward` then gives it."""
        ...


class Sampler(Protocol):
    """Says how a group is drawn; the plan is a value that only the modality of its kind understands.

    One that chooses among samples on their way is `Steered` too, and has `prepare` as rewards have.
    """

    # what it plans for; given: nothing is drawn, the data brings all
    sample_kind: ClassVar[SampleKind | Literal["given"]]

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> Any: ...


@runtime_checkable
class Steered(Protocol):
    """Samplers that choose among samples during sampling have this too."""

    @property
    def reward(self) -> Reward | None:
        """The reward that the sampler chooses by; None where it does not choose."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A world that an agent acts in, one episode after the other: a plug-in, of which each copy is one world.

    Construction checks settings only; `reset` opens what it needs. The same task, seed and actions give the same
    observations, rewards and state keys. All calls of one world come from one thread. An environment may also have
    `snapshot() -> Any` and `restore(snapshot) -> None`, exact, where that is cheap.
    """

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Begins an episode; `task.target` holds what the environment needs to set it up."""
        ...

    def step(self, action: Action) -> Observation:
        """Does what the action says, in pixels of the last screenshot. One that cannot be done here changes nothing and
        gives an observation whose text says so. Raises only where the world itself is broken."""
        ...

    def state_key(self) -> str:
        """Names the present state: equal exactly where what follows an action is the same."""
        ...

    def close(self) -> None:
        """Gives everything back; `reset` may open it again. May be called more than once."""
        ...


@runtime_checkable
class Prepared(Protocol):
    """Rewards, losses, samplers and advantages that load weights or open services have this too."""

    def prepare(self, placement: Placement) -> None: ...


@runtime_checkable
class Twinned(Protocol):
    """Plug-ins that load weights, or hold others that do, have this too."""

    def tiny(self, seed: int, folder: Path) -> Self:
        """The same class on a random twin of small sizes, written to `folder`, every part present."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """Plug-ins whose state must survive a resume; `update` is the only place where it changes.

    It is called once an iteration, on all processes alike, with the scores of all samples of that iteration; those of a
    reward hold its own column only.
    """

    def update(self, scores: Scores) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Advantage(Protocol):
    """Turns the scores of a batch into what each sample or decision is worth.

    What it requires and what its numbers are about, it says in `declaration` (see `AdvantageDeclaration`); one without
    has the defaults: it compares the samples of a group, two at least, by their totals.
    """

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """[B], or [B, K] where the decisions make a difference. 0 for invalid samples."""
        ...


@runtime_checkable
class RangeChecking(Protocol):
    """Advantages that not all rewards fit have this too."""

    def check(self, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
        """Raises ValueError where it cannot compare the rewards that count, of these ranges and weights."""
        ...


@runtime_checkable
class BestChecking(Protocol):
    """Advantages that take a total for the best have this too."""

    def check_best(self, best: Mapping[str, tuple[float, float]]) -> None:
        """Raises ValueError for other totals than theirs, at the start and the end of the weights' schedules.

        Args:
            best: the largest totals that can be, by what they are totals of (see `reward_checks.best_totals`).
        """
        ...


@runtime_checkable
class Selective(Protocol):
    """Advantages that leave samples or decisions out of the update altogether have this too."""

    def update_mask(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """[B] or [B, K] bool: what is learned from. The rest counts nowhere, and no network call is made for it."""
        ...


@dataclass(frozen=True)
class OutputsByWeights:
    """The forward outputs of one view, under each of the weights that the loss asked for."""

    trained: Any  # ForwardOutputs with a graph
    old: Any = None  # ForwardOutputs without
    reference: Any = None  # ForwardOutputs without
    averaged: Any = None  # ForwardOutputs without
    score: DifferentiableScore | None = None  # for losses on outputs


@dataclass(frozen=True)
class LossBatch:
    """The samples behind the entries [B, K] of a loss."""

    advantages: Tensor  # [B, K]
    weight: Tensor  # [B, K]: what each entry counts; 0 for entries outside the view
    group: Tensor  # [B] int64: which samples are compared
    scores: Tensor  # [B] total of the rewards; 0 for samples that take no part


@dataclass(frozen=True)
class LossTerms:
    terms: Tensor  # [B, K] unreduced, differentiable
    metrics: Mapping[str, Tensor]  # [B, K] each, detached; the core takes their weighted mean


class Loss(Protocol):
    """A loss in two stages, so that work can be cut into micro-batches whatever its scope.

    `measure` turns forward outputs into a few small tensors [B, K] (the network is behind them); the call is a formula
    on these. With `scope = "decision"` the two run per micro-batch. With a larger scope the core measures all
    micro-batches without a graph, takes the formula's gradient with respect to the measures, and replays each
    micro-batch with that gradient.

    One that reads more of decisions than their log-probs names it in `requires: frozenset[str]` (see
    `evaluations.PROVIDED`). One that compares the samples of a group names the smallest it can learn from in
    `min_group_size`, as advantages do. `requires_behaviour`: whether its old log-probs must be those of whoever made
    the samples, since it corrects by the ratio to them; False where old are only what the policy is held near. Without
    it, all that need old do.
    """

    @property
    def kind(self) -> Literal["decisions", "denoising", "outputs"]:
        """The evaluation that it reads."""
        ...

    @property
    def scope(self) -> Scope: ...
    @property
    def needs(self) -> frozenset[WeightsName]:
        """Weights to evaluate beside the trained ones: old, reference, averaged."""
        ...

    def old_decay(self, iteration: int) -> float | None:
        """None: old are the weights that drew the rollout (log-probs recorded at sampling). A number: old is an average
        kept across iterations, which draws the rollouts; old <- decay * old + (1 - decay) * trained after the updates
        of `iteration` (counted from 0)."""
        ...

    def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[View]:
        """What one optimizer step on the samples `rows` evaluates, one view for each block."""
        ...

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        """[B, K] what each term counts, and the denominator (see `numerics.normalised_weights`)."""
        ...

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Small tensors [B, K] (or [B, 1]), 0 outside the view; the first is differentiable, others may be facts."""
        ...

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms: ...
