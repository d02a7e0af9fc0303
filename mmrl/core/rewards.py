"""What an author of a reward or a mix writes, and what a reward sees. `mmrl.core.contracts` exports these names too.

A reward must have the members of `Reward`. `Licensed`, `Segmented`, `Checking`, `Holding`,
`Spending`, `Explaining` and `Fitted` are optional.
Letters of shapes: B samples, K decisions of a sample.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmrl.core.data import Granularity, Outputs, Prompt, Scores
from mmrl.core.dense import decision_mask
from mmrl.core.likelihoods import Likelihoods


@dataclass(frozen=True, kw_only=True)
class Thought:
    """What the policy thinks of B answers, as far as the rewards of the run need it; nothing outside of training."""

    # By the names of weights (`likelihoods.NAME`, and with self-certainties `self_certainty.NAME`).
    likelihoods: Mapping[str, Likelihoods] = field(default_factory=dict)
    # By the names of weights (`right_answer.NAME`): [B] float32 nats, the mean log-prob at temperature 1 of the tokens
    # of the target's answer in the tag `<answer>`, behind what the sample says before it; NaN without such a tag.
    right_answer: Mapping[str, Tensor] = field(default_factory=dict)
    # By the folders or hub names of reward models that are adapters on the policy's base (`adapter.NAME`): [B] float32.
    adapter_scores: Mapping[str, Tensor] = field(default_factory=dict)
    # Of an agent's turns (`turn_answer.NAME`): [B, 2] float32 nats, the same mean log-prob where the tag comes at once:
    # behind what the agent sees before a turn, and before the next turn; NaN after the last, and without an answer.
    turn_answer: Mapping[str, Tensor] = field(default_factory=dict)

    def thought_of(self, rows: Tensor) -> dict[str, Any]:
        """Returns these fields for the answers `rows`, [n] int64."""
        return {
            "likelihoods": {name: one.select(rows) for name, one in self.likelihoods.items()},
            "right_answer": {name: one[rows] for name, one in self.right_answer.items()},
            "adapter_scores": {name: one[rows] for name, one in self.adapter_scores.items()},
            "turn_answer": {name: one[rows] for name, one in self.turn_answer.items()},
        }


@dataclass(frozen=True)
class RewardBatch(Thought):
    """The B samples that a reward judges in one call: whole groups, with their prompts."""

    prompts: tuple[Prompt, ...]  # B: the prompt of each sample
    outputs: Outputs  # B: images, videos or answers
    group: Tensor  # [B] int64: samples of one number are compared with each other
    episode: Tensor  # [B] int64: turns of one number belong to one episode; elsewhere each sample has its own number
    turn: Tensor  # [B] int64: the place of a turn in its episode, counted from 0
    seeds: tuple[int, ...]  # B: each sample's own seed
    iteration: int  # counted from 0
    generator: torch.Generator  # on the CPU, seeded by the keys of the batch
    is_control: Tensor | None = None  # [B] bool: a sample to compare with, which is not learned from; None: all False
    num_decisions: Tensor | None = None  # [B] int64: tokens or random steps of each sample; None: unknown

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def is_member(self) -> Tensor:
        """[B] bool: False for the controls."""
        return torch.ones_like(self.group, dtype=torch.bool) if self.is_control is None else ~self.is_control

    def members(self) -> list[Tensor]:
        """Returns the rows [n] int64 of each group's samples, on the CPU, without the controls; n may be 0."""
        group, is_member = self.group.cpu(), self.is_member.cpu()
        return [((group == number) & is_member).nonzero()[:, 0] for number in group.unique()]

    @property
    def is_decision(self) -> Tensor:
        """[B, K] bool, for dense rewards: where a sample has a decision; K is the largest number of decisions."""
        assert self.num_decisions is not None, "the number of decisions is unknown"
        return decision_mask(self.num_decisions)


@dataclass(frozen=True)
class License:
    """The licence of published weights, as their model card or repository says, and what it allows.

    `commercial` is False where commercial use is not known to be allowed: where the terms forbid it, where there are
    none, and where they are those of a model or a file that the config names.
    """

    name: str  # such as "MIT"; "unknown" where they say nothing, "other" for terms of their own
    commercial: bool  # whether it is known to allow commercial use


@runtime_checkable
class Reward(Protocol):
    """Judges samples. Its class attributes say to users and to the core what it judges, and by what.

    What else is true of a reward, it declares in a `RewardDeclaration`: for example `is_relative`, that its scores have
    the same mean in every group, or `concurrency`, the batches that a reward on a server judges at once.
    """

    source: ClassVar[str]  # the paper or the repository that it comes from
    range: ClassVar[tuple[float, float]]  # the lowest and the highest score; both may be infinite
    granularity: ClassVar[
        Granularity
    ]  # what one number is about: a sample, turn, episode, group, step, segment or token
    differentiable: ClassVar[bool]  # the score has a gradient with respect to the images or videos
    needs: ClassVar[frozenset[str]]  # what it reads: names of `reward_batches.NEEDS`, and "target.<field>"
    batch_size: ClassVar[int | None]  # samples of one call, at most; None: any number

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores of a batch, float32 [B], higher is better.

        A dense reward, of granularity step, segment or token, returns [B, K]: a number for each decision of a sample,
        to which `range` applies, and 0 behind the last decision. The number of a segment stands at the segment's last
        token, with 0 before it. The scores depend on the batch only.

        Raises:
            Exception: any, where the reward cannot judge; it never returns a number instead. The core masks the sample.
        """
        ...


@runtime_checkable
class Licensed(Protocol):
    """A reward that loads published weights by default. Optional; `mmrl list rewards` shows the licence."""

    license: License  # of the default weights; a class attribute


@runtime_checkable
class Segmented(Protocol):
    """A reward of granularity segment. Needed there, since a segment may have a score of 0."""

    def ends(self, batch: RewardBatch) -> Tensor:
        """Returns [B, K] bool: the decisions at which a segment ends; the last decision of every sample is one."""
        ...


@runtime_checkable
class Checking(Protocol):
    """A reward that cannot judge by every target. Optional; the core calls it once per prompt, when data is loaded."""

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError, with what is wrong with the prompt's target, where no sample for it could be judged."""
        ...


@runtime_checkable
class Holding(Protocol):
    """A reward that is made of other rewards. Optional; `rewards/base/wrapper.py` has it."""

    def inner_rewards(self) -> Mapping[str, Reward]:
        """Returns the inner rewards by the names of their fields; in a list, by field and place ("rewards.0")."""
        ...


@runtime_checkable
class Spending(Protocol):
    """A reward that costs something, such as requests to a judge. Optional."""

    def spent(self) -> Mapping[str, float]:
        """Returns what this process has used so far by name, which is logged as reward/LABEL/NAME."""
        ...


@runtime_checkable
class Explaining(Protocol):
    """A reward that may write why a sample has its score, as a judge that gives its reasons first does. Optional."""

    @property
    def is_explaining(self) -> bool:
        """Whether it writes reasons, with its present settings."""
        ...

    def reasons(self, batch: RewardBatch) -> tuple[str, ...]:
        """Returns B texts: why each sample has its score, in the reward's own words, empty where there are none.

        It is called after `score` for samples that this could judge; a judge is not asked again.
        """
        ...


@runtime_checkable
class Fitted(Protocol):
    """A reward that learns from the samples that it judges, in its `update`. Optional; `rewards/base/fitted.py` has it.

    What it learns from travels with its scores: `update` gets those of all processes, in the order of the prompts.
    """

    def score_with_examples(self, batch: RewardBatch) -> tuple[Tensor, Tensor]:
        """Returns the scores [B] as `score` does, and what is learned from each sample, [B, D] float32; NaN: nothing.

        D is the same in all calls of an iteration. Called in the place of `score`, except for gradients.
        """
        ...

    def fit(self) -> Mapping[str, float]:
        """Returns how well it fits by name, which is logged as reward/LABEL/NAME; the same on all processes."""
        ...


class Mix(Protocol):
    """Makes one number of the rewards of each sample."""

    def check(self, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
        """Raises ValueError where rewards of these ranges and weights cannot be mixed.

        They are the rewards that count, and those that the mix declares in `MixDeclaration.requires_rewards`.
        """
        ...

    def __call__(self, scores: Scores) -> Tensor:
        """[B]; anything for invalid samples, whose rewards may be NaN."""
        ...
