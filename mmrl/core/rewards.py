"""What a reward is, what it sees, and how rewards become one number: part of `mmrl.core.contracts`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmrl.core.data import Granularity, Outputs, Prompt, Scores
from mmrl.core.dense import decision_mask


@dataclass(frozen=True)
class RewardBatch:
    """What a reward sees: B samples, whole groups, with their prompts."""

    prompts: tuple[Prompt, ...]  # B, the prompt of each sample
    outputs: Outputs  # B
    group: Tensor  # [B] int64
    episode: Tensor  # [B] int64
    turn: Tensor  # [B] int64
    seeds: tuple[int, ...]  # B, each sample's own seed
    iteration: int
    generator: torch.Generator  # seeded by the batch's keys
    is_control: Tensor | None = None  # [B] bool: drawn to compare with, not learned from; None: no sample is
    num_decisions: Tensor | None = None  # [B] int64: tokens or random steps of each sample; None: outputs alone

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def is_member(self) -> Tensor:
        """[B] bool: the samples of groups themselves, without the controls."""
        return torch.ones_like(self.group, dtype=torch.bool) if self.is_control is None else ~self.is_control

    def members(self) -> list[Tensor]:
        """[n] int64 rows of each group's samples, on the CPU, without the controls; n may be 0."""
        group, is_member = self.group.cpu(), self.is_member.cpu()
        return [((group == number) & is_member).nonzero()[:, 0] for number in group.unique()]

    @property
    def is_decision(self) -> Tensor:
        """[B, K] bool: where the samples have decisions; K is the largest number of them. For dense rewards."""
        assert self.num_decisions is not None, "asked of outputs alone"
        return decision_mask(self.num_decisions)


@runtime_checkable
class Reward(Protocol):
    """Judges samples. The class attributes tell users and the core what it is."""

    source: ClassVar[str]  # paper or repository
    range: ClassVar[tuple[float, float]]  # ends of the score, may be infinite
    granularity: ClassVar[Granularity]
    differentiable: ClassVar[bool]
    needs: ClassVar[frozenset[str]]  # of `reward_batches.NEEDS`, and "target.<field>"
    batch_size: ClassVar[int | None]  # samples it wants at once; None: any number
    # How many batches are under way at once, of a reward that asks a server, stands in its `RewardDeclaration`.
    # One whose scores have the same mean in every group, such as a rank, has `is_relative` True: it compares no groups.

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32, higher is better; pure. Raises where it cannot judge, never returns a made-up number.

        Of granularity step, segment or token: [B, K], a number for each decision of a sample (`range` is that of one),
        0 behind its last one; a segment's number stands at its last token, with 0 before it.
        """
        ...


@runtime_checkable
class Segmented(Protocol):
    """Rewards of granularity segment have this too: a number of 0 is no gap between numbers."""

    def ends(self, batch: RewardBatch) -> Tensor:
        """[B, K] bool: the decisions at which a segment ends, the last one of every sample among them."""
        ...


@runtime_checkable
class Checking(Protocol):
    """Rewards that cannot judge by every target have this too; asked once for each prompt, when data is loaded."""

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError, with what is wrong, where no answer to this prompt could be judged."""
        ...


@runtime_checkable
class Holding(Protocol):
    """Rewards that hold other rewards have this too."""

    def inner_rewards(self) -> Mapping[str, Reward]:
        """The rewards that it holds, by the names of their fields and of their places in these."""
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
