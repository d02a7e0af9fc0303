"""The decisions of a rollout as tables: the call and the edge of the tree behind each, and what is known of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class DecisionBlock:
    """The decisions of B samples, K at most each: denoising steps or tokens (a text, then an image: two blocks).

    A sample's decision is named by the edge of the tree that it takes; leaves that share an edge share its number.
    """

    call: Tensor  # [B, K] int64: number of the network call behind each decision; -1 where there is none
    edge: Tensor  # [B, K] int64: number of the decision itself; -1 where there is none
    weight: Tensor  # [B, K] float32: 1 / (leaves that share the edge); 0 where there is none
    facts: Mapping[str, Tensor] = field(default_factory=dict)  # [B, K] float32 each, see `Paths`

    @classmethod
    def none(cls, num_samples: int) -> "DecisionBlock":
        """Samples without decisions: K = 0."""
        empty = torch.zeros(num_samples, 0, dtype=torch.int64)
        return cls(empty, empty, empty.float())

    @property
    def paths(self) -> "Paths":
        """What an advantage may know of them."""
        return Paths(self.edge, self.facts)

    def select(self, rows: Tensor) -> "DecisionBlock":
        """The decisions of the samples `rows` [n], numbered as they are."""
        facts = {name: values[rows] for name, values in self.facts.items()}
        return DecisionBlock(self.call[rows], self.edge[rows], self.weight[rows], facts)

    def weight_among(self, takes_part: Tensor) -> Tensor:
        """[B, K] what each decision counts where `takes_part` ([B, 1] or [B, K]) is above 0: one over the number of
        leaves that share it and take part there."""
        counted = (self.edge >= 0) & (takes_part > 0)
        leaves = torch.bincount(self.edge[counted], minlength=1)
        return torch.where(counted, 1 / leaves[self.edge.clamp(min=0, max=len(leaves) - 1)], torch.zeros(()))

    @classmethod
    def join(cls, blocks: "Sequence[DecisionBlock]") -> "DecisionBlock":
        """All decisions in order; call and edge numbers are shifted."""
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
    """What an advantage may know of the decisions of B samples, K at most each.

    Facts of denoising steps: `step` (its number on the grid), `sigma` and `sigma_next` (noise levels), `std` (of the
    step's noise). Of tokens: `log_prob` (nats, under the distribution it was drawn from) and `entropy` (nats, of that
    distribution), where the policy records them. They are 0 where there is no decision.
    """

    edge: Tensor  # [B, K] int64: numbers unique within a draw, the same where samples share a decision; -1: none
    facts: Mapping[str, Tensor] = field(default_factory=dict)  # [B, K] float32 each

    def __getitem__(self, rows: Tensor | list[int]) -> "Paths":
        """Of the samples `rows` [n]."""
        return Paths(self.edge[rows], {name: values[rows] for name, values in self.facts.items()})

    @classmethod
    def join(cls, parts: "Sequence[Paths]") -> "Paths":
        """Of all parts in order, as wide as the widest; numbers of edges stay as they are."""
        width = max(part.edge.shape[1] for part in parts)
        known = [set(part.facts) for part in parts if part.edge.shape[1]]  # without decisions there is nothing to know
        facts = {
            name: torch.cat([_widened(part.facts.get(name, part.edge[:, :0].float()), width, 0) for part in parts])
            for name in sorted(set.intersection(*known) if known else ())
        }
        return cls(torch.cat([_widened(part.edge, width, -1) for part in parts]), facts)


def count_calls(block: DecisionBlock) -> int:
    """Network calls that one pass over the block's decisions takes."""
    return after(block.call)


def after(numbers: Tensor) -> int:
    """The first number above all of these."""
    return int(numbers.max()) + 1 if numbers.numel() else 0


def cat_shifted(parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Concatenates index tensors, each shifted by the sizes before it; -1 stays -1."""
    offsets = [sum(sizes[:n]) for n in range(len(sizes))]
    return torch.cat([torch.where(p >= 0, p + offset, p) for p, offset in zip(parts, offsets, strict=True)])


def _widened(table: Tensor, width: int, fill: int) -> Tensor:
    return torch.nn.functional.pad(table, (0, width - table.shape[1]), value=fill)
