"""The decisions of a rollout as tables: the network call and the tree edge behind each decision, and facts about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


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
    the token was sampled from) and `entropy` (nats, of that distribution). Facts are 0 where there is no decision.
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
