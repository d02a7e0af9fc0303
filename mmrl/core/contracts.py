"""What an author of a plug-in writes: the protocols of policies, samplers, environments, rewards, advantages, losses.

Every name that an author needs can be imported from here. A plug-in is a frozen dataclass in one file; its fields are
its settings. It must have every member of the protocol of its kind: `Modality`, `Sampler`, `Reward`, `Mix`,
`Advantage`, `Loss` or `Environment`. All other protocols here are optional: a plug-in that has their members can do
more. Facts about a plug-in, such as the smallest group it works with, stand in its `declaration`
(`mmrl.core.declarations`), which is optional too.

Letters of shapes: P prompts, B samples, K decisions of a sample, N entries of a view.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from mmrl.core.data import Granularity, Observation, Outputs, Paths, Prompt, Rollout, Scores, WeightsName
from mmrl.core.forward_outputs import ForwardOutputs
from mmrl.core.keys import GroupKey
from mmrl.core.likelihoods import Likelihoods
from mmrl.core.rewards import (
    Checking,
    Explaining,
    Fitted,
    Holding,
    License,
    Licensed,
    Mix,
    Reward,
    RewardBatch,
    Segmented,
    Spending,
)
from mmrl.core.views import View
from mmrl.core.weights import Weights
from mmrl.parsing.actions.action import Action
from mmrl.system.errors import ConfigError, DivergedError, RunError
from mmrl.system.json_server import Lost

__all__ = [  # all names that an author of plug-ins needs, also those of other files
    "Action",
    "AdapterScoring",
    "Advantage",
    "Assessing",
    "BestChecking",
    "Checking",
    "Closing",
    "ConfigError",
    "Cut",
    "Cutting",
    "DecisionSelecting",
    "Differentiable",
    "DifferentiableScore",
    "DivergedError",
    "EngineTwinned",
    "Environment",
    "Explaining",
    "Fitted",
    "ForwardOutputs",
    "Granularity",
    "GroupKey",
    "Holding",
    "Keeping",
    "License",
    "Licensed",
    "Likelihoods",
    "Loadable",
    "Loss",
    "LossBatch",
    "LossTerms",
    "Mix",
    "Modality",
    "Observation",
    "Outputs",
    "OutputsByWeights",
    "Paths",
    "Placement",
    "Prepared",
    "Prompt",
    "PromptSharing",
    "Provable",
    "RangeChecking",
    "Reader",
    "Reward",
    "RewardBatch",
    "Rollout",
    "RunError",
    "SampleKind",
    "Sampler",
    "SamplingAhead",
    "Scope",
    "Scores",
    "Segmented",
    "Selective",
    "Shardable",
    "Shrinking",
    "Sized",
    "Spending",
    "Stateful",
    "Steered",
    "StepAveraging",
    "Twinned",
    "Usage",
    "View",
    "Weights",
    "WeightsName",
]

Scope = Literal["decision", "path", "group"]
SampleKind = Literal["latents", "tokens", "turns"]
# outputs rendered for the samples [N] -> their scores [N], with a graph from the scores to the outputs
DifferentiableScore = Callable[[Outputs, Tensor], Tensor]


@dataclass(frozen=True)
class Placement:
    """Where and in which precision a plug-in keeps its weights. The core makes it and hands it to `prepare`."""

    device: torch.device
    dtype: torch.dtype  # of frozen weights and of autocast; trained weights are float32
    # Only where weights are sharded, so that all processes must make each network call in lockstep: maps this process's
    # number of calls to the maximum over processes. A process with fewer calls makes dummy calls up to that number.
    # None: each process makes its calls on its own.
    maximum: Callable[[int], int] | None = None
    # Nothing of the plug-in is trained: all of its weights have `dtype`, and none has a gradient.
    is_frozen: bool = False


# ---- policies


class Modality(Protocol):
    """A policy: a model of one family, with what it takes to sample from it and to evaluate its samples again.

    Its constructor checks settings only; `prepare` loads the weights. All methods but `tiny` are called after
    `prepare`.
    """

    forward_kinds: ClassVar[
        frozenset[str]
    ]  # kinds of forward outputs that `forward` gives: decisions denoising outputs
    sample_kind: ClassVar[SampleKind]  # what its samples are made of
    makes: ClassVar[frozenset[str]]  # fields of `Outputs` that its rollouts have, which rewards may need
    num_calls: int  # network calls made so far, in batch elements

    def prepare(self, placement: Placement) -> None:
        """Loads the model onto the device of the placement. Raises ConfigError for a model that cannot be used."""
        ...

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same class on a random, small twin of the model, with every part present, written to `folder`."""
        ...

    def rollout(self, prompts: Sequence[Prompt], plans: Sequence[Any], keys: Sequence[GroupKey]) -> Rollout:
        """Samples one group per prompt by its plan, without a graph, with the weights now in place.

        Args:
            prompts: P prompts.
            plans: P plans of one sampler, each says how the group of its prompt is sampled.
            keys: P keys, which all random numbers of a group are derived from.
        """
        ...

    def offline(self, prompts: Sequence[Prompt], outputs: Outputs, keys: Sequence[GroupKey]) -> Rollout:
        """Makes a rollout of outputs that the data brings, one per prompt: for SFT, offline pairs, replay.

        Images have no decisions in it. An answer's tokens are decisions.
        """
        ...

    def forward(self, rollout: Rollout, view: View) -> ForwardOutputs:
        """Returns the forward outputs of the view under the weights now in place.

        They have a graph, unless the caller has switched autograd off.
        """
        ...

    def recorded(self, rollout: Rollout, view: View) -> ForwardOutputs:
        """Returns the forward outputs of the view under the weights that sampled the rollout.

        Reads them from the rollout's trace, without a network call.
        """
        ...

    def recompute(self, rollout: Rollout, size: int) -> Rollout:
        """Returns the rollout with the values that `recorded` reads computed again under the weights now in place.

        Makes at most `size` network calls at a time, without a graph.
        """
        ...

    @property
    def weights(self) -> Weights:
        """The trained tensors and their copies; `with policy.weights("old"): ...` puts a copy in place."""
        ...

    def modules(self) -> Mapping[str, nn.Module]:
        """Returns the modules that have trained weights, by name."""
        ...

    def export(self, folder: Path) -> None:
        """Writes the trained weights in a format that other tools load: a plain model folder, or an adapter."""
        ...


@dataclass(frozen=True)
class Usage:
    """How an export is loaded and used with the library that it is for: the middle part of its model card."""

    library: str  # as the hub calls it: diffusers, transformers, peft
    task: str  # as the hub calls it: text-to-image, image-text-to-text ...
    trained: str  # which part of the model was trained, in words
    is_adapter: bool  # the export is a LoRA, and needs the model that it was trained on
    code: str  # Python that runs in the exported folder
    notes: tuple[str, ...] = ()  # sentences on what the code leaves out and how to read its result
    images: tuple[str, ...] = ()  # files that the code loads, which whoever runs it brings


@runtime_checkable
class Loadable(Protocol):
    """A policy whose export another library loads. Optional."""

    def usage(self, prompt: Prompt, plan: Any, base: str) -> Usage:
        """Returns how the export samples for such a prompt in the way that a plan says.

        Args:
            prompt: an example.
            plan: the plan to follow; None: the library's defaults.
            base: Python source of the argument with which `from_pretrained` loads the model that was trained.
        """
        ...


@runtime_checkable
class Reader(Protocol):
    """A policy whose prompts hold more than text, so that it may not be able to read some of them. Optional."""

    def refusal(self, prompt: Prompt) -> str | None:
        """Returns why the policy cannot read a prompt, judged by texts and headers of files; None: no reason found."""
        ...

    def unreadable(self, prompt: Prompt) -> str | None:
        """Returns why the policy cannot read a prompt, judged by its whole media; None: the prompt is readable."""
        ...


@runtime_checkable
class Prefetching(Protocol):
    """A policy that can decode and encode prompts on threads of its own, beside the loop. Optional.

    What it samples and evaluates is the same with any number of threads.
    """

    def use_workers(self, count: int, max_bytes: int) -> None:
        """Sets the number of threads, 0 for none, and the bytes of prompts that may be encoded ahead of their use."""
        ...

    def prefetch(self, prompts: Sequence[Prompt]) -> None:
        """Begins to decode and encode prompts that the next rollouts are about; returns at once, and never raises.

        A prompt that cannot be read is an error where it is used.
        """
        ...

    def decoding_seconds(self) -> tuple[float, float]:
        """Returns the seconds so far that the loop waited for prompts to be encoded, and that the threads worked."""
        ...


@runtime_checkable
class Acting(Protocol):
    """A policy that acts in environments, whose time a run reports. Optional."""

    def environment_seconds(self) -> tuple[float, float]:
        """Returns the seconds so far that rollouts waited for environments, and that their copies worked side by
        side.
        """
        ...


@dataclass(frozen=True)
class Cut:
    """The part of a too long prompt that a text encoder reads."""

    encoder: str  # its family, such as CLIP
    num_read: int  # tokens that it reads, the first ones of the prompt, without special tokens at the ends
    num_tokens: int  # of the whole prompt
    end: str  # the last words that it reads


@runtime_checkable
class Cutting(Protocol):
    """A policy that reads only the beginning of a long prompt. Optional."""

    def cuts(self, texts: Sequence[str]) -> Sequence[tuple[Cut, ...]]:
        """Returns, for each text, where each encoder cuts it; an empty tuple for a text that is read whole."""
        ...


@runtime_checkable
class Shardable(Protocol):
    """A policy whose weights can be sharded over processes. Optional.

    All processes then make each network call in lockstep. `rollout`, `recompute` and `forward` get the maximum number
    of calls over processes from `Placement.maximum`, and a process with fewer calls makes dummy calls: those of
    `forward` are `dummy_forward`.
    """

    def networks(self) -> Sequence[nn.Module]:
        """Returns the modules that are sharded and called, each a tree of its own below `modules()`."""
        ...

    def dummy_forward(self) -> Tensor:
        """Takes part in one `forward` of the other processes. Returns 0, with a graph to all trained weights."""
        ...

    def dummy_rollout(self, plan: Any) -> None:
        """Takes part in one `rollout` of the other processes, by plans like this one."""
        ...


@runtime_checkable
class Sized(Protocol):
    """A policy whose prompts may ask for samples of different sizes. Optional."""

    @property
    def known_sizes(self) -> Sequence[Any]:
        """The sizes in order, each with a text; empty where all samples have one size."""
        ...

    def size_for(self, prompt: Prompt) -> Any:
        """Returns the size of a prompt's samples, one of `known_sizes`; known before weights are loaded."""
        ...

    def sized(self, prompt: Prompt) -> Any:
        """Returns the policy, a Modality, by which the groups of a prompt are planned: noise levels depend on sizes."""
        ...

    def apart(self, rollout: Rollout, view: View) -> Sequence[View]:
        """Returns the parts of a view, each of samples of one size: `forward` takes no others."""
        ...


@runtime_checkable
class EngineTwinned(Protocol):
    """A policy whose samples an inference engine may make. Optional."""

    def with_tiny_engine(self) -> Self:
        """Returns the same policy with a small engine on this machine in the place of its engine, if it has one."""
        ...

    def send_weights(self) -> str:
        """Sends the engine the weights now in place; returns the name by which it samples with them."""
        ...

    def send_shards(self) -> None:
        """Takes part in `send_weights` of the main process, where each process holds a shard of the weights."""
        ...

    def share_weights(self, name: str) -> None:
        """Samples by the weights now in place, which another process of the run has sent under this name."""
        ...

    def recover_engine(self, error: Lost) -> None:
        """Waits until an engine that was lost is back, and sends it the newest weights that were sent.

        Called by the process that sent them, while no other one samples. Raises the error, by which some process lost
        the engine, where it does not come back.
        """
        ...


@runtime_checkable
class SamplingAhead(Protocol):
    """A policy whose inference engine can sample a rollout while the policy learns from the one before. Optional."""

    @property
    def num_taken_ahead(self) -> int:
        """How many samples so far were taken from those that were sampled ahead."""
        ...

    def sample_ahead(self, prompts: Sequence[Prompt], plans: Sequence[Any], keys: Sequence[GroupKey]) -> None:
        """Begins to sample, by the weights now in place, what `rollout` will be asked for next; returns at once.

        A `rollout` that is asked for something else samples it as ever. A prompt that cannot be read is no error yet.
        """
        ...

    def settle_ahead(self) -> None:
        """Waits for what is sampled ahead. Raises what went wrong in it."""
        ...

    def ahead(self) -> Sequence[Mapping[str, Tensor]]:
        """Returns this process's samples that were sampled ahead, as tensors of one dimension; waits for them.

        There are none where something went wrong, which `settle_ahead` raises.
        """
        ...

    def restore_ahead(self, records: Sequence[Mapping[str, Tensor]]) -> None:
        """Restores what `ahead` returned, on all processes together."""
        ...


@runtime_checkable
class PromptSharing(Protocol):
    """A policy whose updates run a prompt once for several answers. Optional."""

    @property
    def sharing_used(self) -> str:
        """How an update shares prompts, in words, and why not where it does not; begins with `none` there."""
        ...

    def without_sharing(self) -> AbstractContextManager[None]:
        """Runs a prompt once for each of its answers in the block: the same log-probs, but for rounding."""
        ...


@runtime_checkable
class Assessing(Protocol):
    """A policy that says how likely it finds answers, for rewards that need it. Optional.

    All methods make no graph, and at most `size` network calls at a time.
    """

    def recorded_likelihoods(self, rollout: Rollout) -> Likelihoods:
        """Returns the likelihoods of a rollout's answers by the weights that sampled them, without a network call."""
        ...

    def likelihoods(self, rollout: Rollout, size: int, *, has_certainty: bool = False) -> Likelihoods:
        """Returns the likelihoods of a rollout's answers by the weights now in place.

        `has_certainty`: with self-certainties, which take one more pass over the output head.
        """
        ...

    def mean_log_probs(self, rollout: Rollout, ends: Sequence[tuple[str, str] | None], size: int) -> Tensor:
        """Returns, [B] float32 in nats, the mean log-prob of the tokens of other ends of the rollout's B answers.

        An end is a text that the answer begins with, and the text that follows; a token of both counts. The weights are
        those now in place, the temperature is 1. NaN where there is no end, or one that no answer can have.
        """
        ...


@runtime_checkable
class Spreading(Protocol):
    """A policy that says how far apart the answers of a group are, for advantages that require `spread`. Optional."""

    def spreads(self, rollout: Rollout, size: int) -> Tensor:
        """Returns, [B, K] float32 on the CPU, the spread of each sample's group at its decisions; 0 without one.

        The weights are those now in place. Makes no graph, and at most `size` network calls at a time.
        """
        ...


@runtime_checkable
class AdapterScoring(Protocol):
    """A policy whose frozen base also carries reward models, as adapters with a scalar head each. Optional."""

    def load_reward_adapter(self, path: str) -> None:
        """Loads the reward model of a folder or hub name onto the base, after `prepare`; it is switched off and frozen.

        Raises ConfigError where it does not fit the base, or the base itself is trained.
        """
        ...

    def adapter_scores(self, rollout: Rollout, path: str, size: int) -> Tensor:
        """Returns the scores, [B] float32 on the CPU, of a rollout's answers by a loaded reward model.

        Makes no graph, and at most `size` network calls at a time.
        """
        ...

    def write_tiny_adapter(self, seed: int, folder: Path) -> None:
        """Writes a random reward model that fits the base to a folder, before `prepare`."""
        ...


@runtime_checkable
class Provable(Protocol):
    """A policy that drives the code of another library and is compared with what it does by itself. Optional."""

    def proof(self, prompt: Prompt, scales: Sequence[float] = ()) -> Mapping[str, float | str]:
        """Returns how far the policy is from the library on a prompt, by the names of the differences.

        For a pipeline of diffusers: `stock_difference` (largest difference of pixels in [0, 1], the worst of the
        scales), `batch_difference` and `gradient_difference` (prompts of different lengths in one go against one by
        one, relative to the largest value), `log_prob_difference` (recorded against recomputed), `calls` and `replay`
        (whether network arguments are used again, in words).

        Args:
            scales: of guidance, those of a run's plans, for which no gradient is taken; (): off and on.
        """
        ...


@runtime_checkable
class Closing(Protocol):
    """A policy that holds threads or services while it is used. Optional."""

    def close(self) -> None:
        """Ends them. May be called more than once; what is used again afterwards is opened again."""
        ...


@runtime_checkable
class Keeping(Protocol):
    """A policy that keeps what several passes of one iteration need, such as features of images. Optional."""

    def forget(self) -> None:
        """Frees it, at the end of an iteration and of a chunk of a held-out evaluation."""
        ...


@dataclass(frozen=True)
class VideoMemory:
    """The memory of the videos of a policy, in bytes; None: unknown before the model is loaded."""

    video: int | None  # of one video, as rewards see it
    decoding: int | None  # of live tensors while `decode_batch` videos are decoded, at most, these videos included


@runtime_checkable
class VideoMaking(Protocol):
    """A policy that may make videos. Optional; `mmrl check` says how much memory they take."""

    def video_memory(self, count: int) -> VideoMemory | None:
        """Returns the memory of videos, of which `count` are sampled in one rollout; None for a policy of images.

        Nothing is loaded but the settings of the model.
        """
        ...


@dataclass(frozen=True)
class Workload:
    """What a process of a run does in an iteration, as far as memory and time depend on it."""

    dtype: torch.dtype  # the run's precision
    samples: int  # of an iteration
    at_once: int  # samples of a chunk of groups, which are sampled together
    group_size: int
    calls: int  # recorded network calls of an iteration, which updates evaluate
    micro_batch: int  # network calls evaluated at once
    branches: int  # network calls behind each of these: guidance doubles them
    prompt_tokens: int  # of a prompt of a model that answers, its images included
    max_tokens: int  # of an answer; 0 for images
    trained_dtype: torch.dtype = torch.float32  # of the weights of a fully trained network


@dataclass(frozen=True)
class Footprint:
    """What a policy takes for a workload, by tensors that have a shape and no content. Bytes, where nothing is said."""

    frozen: int  # weights that are not trained, encoders of prompts and autoencoders included
    trained: int  # trained tensors, as the network holds them
    largest: int  # the largest trained tensor
    is_adapter: bool  # the reference is the adapter switched off, and takes nothing
    activations: int  # of a micro-batch forward and backward, gradients of weights left out
    last_layer: int  # of these, what is there at the end of the backward pass
    sampling: int  # of live tensors while samples are made, the kept ones left out
    kept: int  # what a rollout keeps until it is learned from, images left out
    outputs: int  # images and videos of a chunk, until they are scored
    call_flops: float  # of one call forward in a rollout
    update_flops: float  # of one call forward in an update
    recomputes: bool  # checkpointing makes each forward pass twice
    kernels: int  # of a sequential step of a rollout
    steps: int  # sequential steps of a chunk of samples, such as tokens; 0: only FLOPs count
    decode_flops: float = 0.0  # of the decoding of a sample
    features: int = 0  # of a frozen vision tower, which are kept on the device for all passes of an iteration
    notes: tuple[str, ...] = ()  # what was assumed


@runtime_checkable
class Foreseeing(Protocol):
    """A policy whose memory and FLOPs are known before its weights are loaded. Optional."""

    def footprint(self, work: Workload) -> Footprint:
        """Returns what the policy takes. Raises ConfigError where its architecture is not known."""
        ...


@runtime_checkable
class Answering(Protocol):
    """A policy that samples answers side by side, `answer_batch` at once or, with `auto`, as many as memory allows.

    Optional.
    """

    answer_batch: int | Literal["auto"]

    def longest_prompt(self, prompts: Sequence[Prompt]) -> int:
        """Returns the tokens of the longest of some prompts, their media included."""
        ...

    def answer_at_once(self, count: int) -> None:
        """Samples `count` answers side by side from now on, in the place of `auto`."""
        ...


@runtime_checkable
class Shrinking(Protocol):
    """A policy or a reward whose twin is small only while constants of a library are small, too. Optional."""

    def shrunk(self) -> AbstractContextManager[None]:
        """Keeps these constants small, for as long as a twin of this plug-in is used."""
        ...


@runtime_checkable
class Differentiable(Protocol):
    """A policy that carries gradients of rewards back to its outputs and to what its decisions sampled. Optional.

    The core sets `records_trajectories` where a loss needs such gradients. Rollouts then record what sampling starts
    from. It sets `renders_latents` where rewards need the gradients of latents alone: what is rendered with a graph is
    then not decoded.
    """

    records_trajectories: bool
    renders_latents: bool

    def differentiate(self, rollout: Rollout, rows: Tensor, score: DifferentiableScore, size: int) -> Rollout:
        """Returns the rollout with gradients of the scores, which `forward` then gives.

        For each decision of the samples `rows` the gradient is that of the sample's score with respect to the value
        that the decision sampled, under the weights now in place.

        Args:
            rollout: B samples.
            rows: [n] int64 indices of samples.
            score: the scores of rendered outputs.
            size: network calls at a time, at most.
        """
        ...


# ---- samplers and environments


class Sampler(Protocol):
    """Plans how a group is sampled. The plan is a value that only policies of the same `sample_kind` understand.

    A sampler that selects among unfinished samples is `Steered` and `Prepared` too.
    """

    # kind of the samples that it plans; "given": nothing is sampled, the data brings all outputs
    sample_kind: ClassVar[SampleKind | Literal["given"]]

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> Any:
        """Returns the plan of one group of `group_size` samples; random choices are derived from `key`."""
        ...


@runtime_checkable
class Steered(Protocol):
    """A sampler that selects among unfinished samples by a reward. Optional."""

    @property
    def reward(self) -> Reward | None:
        """The reward that the sampler selects by; None where it does not select."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A world that an agent acts in, one episode after the other; each copy of the plug-in is one world.

    Its constructor checks settings only; `reset` opens what an episode needs. The same task, seed and actions give the
    same observations, rewards and state keys. All calls of one world come from one thread. Optional members, where they
    are exact and cheap: `snapshot() -> Any` and `restore(snapshot) -> None`.
    """

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Begins an episode; `task.target` holds what the environment needs to set it up."""
        ...

    def step(self, action: Action) -> Observation:
        """Executes an action, whose coordinates are in pixels of the last screenshot.

        An action that is impossible here changes nothing, and the text of the observation says so. Raises only where
        the world itself is broken.
        """
        ...

    def state_key(self) -> str:
        """Returns a name of the present state, equal for two states exactly where the same actions lead on alike."""
        ...

    def close(self) -> None:
        """Frees all resources. May be called more than once; `reset` may open them again."""
        ...


# ---- members that plug-ins of several kinds may have


@runtime_checkable
class Prepared(Protocol):
    """A reward, loss, sampler or advantage that loads weights or opens services. Optional."""

    def prepare(self, placement: Placement) -> None:
        """Loads weights and opens services, once, before the plug-in is used."""
        ...


@runtime_checkable
class Twinned(Protocol):
    """A plug-in that loads weights, or has inner plug-ins that do. Optional; `mmrl check --tiny` needs it."""

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same class on a random, small twin of the model, with every part present, written to `folder`."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A plug-in whose state must survive a resume. Optional; the state changes in `update` only."""

    def update(self, scores: Scores) -> None:
        """Learns from the scores of all samples of an iteration; a reward gets its own column only.

        It is called once an iteration, with the same scores on all processes.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, as tensors, numbers and texts for a checkpoint."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state that `state_dict` returned."""
        ...


# ---- advantages


class Advantage(Protocol):
    """Turns the scores of a batch into what each sample, or each decision, is worth.

    What it requires, it declares in an `AdvantageDeclaration`. By default it compares the samples of a group, of two at
    least, by their totals.
    """

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns advantages, float32: [B], or [B, K] where the decisions of one sample differ; 0 for invalid samples.

        Args:
            scores: of B samples; see `total` [B], `valid` [B] and `group` [B].
            paths: the decisions [B, K] of the samples; None where the samples have no decisions.
        """
        ...


@runtime_checkable
class RangeChecking(Protocol):
    """An advantage that does not work with all rewards. Optional."""

    def check(self, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
        """Raises ValueError for rewards that the advantage cannot compare.

        Args:
            ranges: the lowest and highest score of each reward that counts, by label.
            weights: their weights, by label.
        """
        ...


@runtime_checkable
class BestChecking(Protocol):
    """An advantage that assumes a highest total. Optional."""

    def check_best(self, best: Mapping[str, tuple[float, float]]) -> None:
        """Raises ValueError where the highest total is another than the advantage assumes.

        Args:
            best: the highest total at the start and at the end of the weights' schedules, by the name of what it is a
                total of (see `mmrl.assembly.reward_checks.best_totals`).
        """
        ...


@runtime_checkable
class Selective(Protocol):
    """An advantage that leaves some samples or decisions out of the update. Optional."""

    def update_mask(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns [B] or [B, K] bool: what the update learns from. No network call is made for the rest."""
        ...


# ---- losses


@dataclass(frozen=True)
class OutputsByWeights:
    """The forward outputs of one view, under each of the weights that the loss `needs`."""

    trained: Any  # ForwardOutputs, with a graph
    old: Any = None  # ForwardOutputs without a graph; None: not needed
    reference: Any = None  # ForwardOutputs without a graph; None: not needed
    averaged: Any = None  # ForwardOutputs without a graph; None: not needed
    score: DifferentiableScore | None = None  # the differentiable rewards, for losses on outputs


@dataclass(frozen=True)
class LossBatch:
    """The samples behind the entries [B, K] of a loss."""

    advantages: Tensor  # [B, K]
    weight: Tensor  # [B, K], at least 0: what each entry counts; 0 for entries that are not part of the view
    group: Tensor  # [B] int64: samples of one number are compared with each other
    scores: Tensor  # [B] the total of each sample's rewards; 0 for samples that take no part
    # [] an estimate of the policy's entropy: the mean of -log_prob over the decisions of the step, of all processes, by
    # the weights that sampled them; None for a loss whose declaration does not require it
    mean_entropy: Tensor | None = None
    iteration: int = 0  # of the run, for settings that change over it
    step: int = 0  # the optimizer step in the iteration
    # [B, K] bool: the decisions that a `DecisionSelecting` loss selected among those of the step; None for other losses
    selected: Tensor | None = None
    # [] the mean of what a `StepAveraging` loss averages over the step, on all processes; None for other losses
    step_mean: Tensor | None = None
    # [B] bool: samples that are imitated, with the advantage 0; None: there are none
    is_imitated: Tensor | None = None


@dataclass(frozen=True)
class LossTerms:
    """The terms of a loss before they are summed, and metrics of them."""

    terms: Tensor  # [B, K] differentiable with respect to the measures
    metrics: Mapping[str, Tensor]  # [B, K] each, detached; the core logs their weighted mean


class Loss(Protocol):
    """A loss in two stages, so that it can be computed in micro-batches whatever its scope.

    Stage one, `measure`, turns forward outputs into a few small tensors [B, K], with the network behind them. Stage
    two, the call, is a formula on these measures. With `scope` "decision" each micro-batch goes through both stages
    alone. With a larger scope the core measures all micro-batches without a graph, takes the gradient of the formula
    with respect to the measures, and runs each micro-batch again, backward from that gradient.

    What the loss requires of decisions and groups, it declares in a `LossDeclaration`.
    """

    @property
    def kind(self) -> Literal["decisions", "denoising", "outputs"]:
        """The kind of forward outputs that it is computed from."""
        ...

    @property
    def scope(self) -> Scope:
        """The entries that one term depends on: its own decision, all of its sample (path), or all of its group."""
        ...

    @property
    def needs(self) -> frozenset[WeightsName]:
        """The weights that it needs forward outputs of, beside the trained ones: some of old, reference, averaged."""
        ...

    def old_decay(self, iteration: int) -> float | None:
        """Returns how the old weights follow the trained ones after the updates of `iteration`, counted from 0.

        None: the old weights are those that sampled the rollout, and their log-probs are the recorded ones. A number:
        the old weights are an average that lasts over iterations and samples the rollouts,
        old <- decay * old + (1 - decay) * trained.
        """
        ...

    def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[View]:
        """Returns what one optimizer step on the samples `rows` ([n] int64) evaluates: one view for each block."""
        ...

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        """Returns what each term counts, [B, K], and the denominator of their sum, a scalar.

        See `mmrl.core.numerics.normalised_weights`.
        """
        ...

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns small tensors, [B, K] or [B, 1] each, 0 for entries that are not part of the view.

        The first is differentiable; the others may be constants.
        """
        ...

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        """Returns the terms [B, K] of the loss, a formula on the measures, and metrics."""
        ...


@runtime_checkable
class DecisionSelecting(Protocol):
    """A loss that treats some decisions of a step unlike the others, by comparing all of them. Optional."""

    def select(self, log_prob: Tensor, advantages: Tensor, weight: Tensor, source: torch.Generator) -> Tensor:
        """Returns the selected decisions: [N] bool.

        Args:
            log_prob: [N] of the decisions of one optimizer step on all processes, under the weights that sampled them.
            advantages: [N]. weight: [N], above 0. source: the randomness of the step, the same on all processes.
        """
        ...


@runtime_checkable
class StepAveraging(Protocol):
    """A loss with a formula on a mean over all entries of an optimizer step under the present weights. Optional."""

    def averaged(self, measures: tuple[Tensor, ...]) -> Tensor:
        """Returns the values [B, K], 0 outside of the view; in their mean each entry counts as in the loss."""
        ...


@runtime_checkable
class Imitating(Protocol):
    """A loss that imitates the right ones of a rollout's further samples. Optional."""

    @property
    def imitate_above(self) -> float:
        """A further sample with a total above this is right."""
        ...

    @property
    def imitate_at_most(self) -> int:
        """The number of further samples of a group that are imitated, the first."""
        ...
