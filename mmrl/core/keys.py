"""Randomness by key: every draw is a function of what it is for, never of when or where it is drawn."""

import json
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor


def seed_from(*parts: int | str) -> int:
    """A 63-bit seed that is the same on every machine, process and run for the same parts."""
    text = json.dumps(parts)  # tells 1 from "1", and where a part ends
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """A CPU generator seeded by `seed_from(*parts)`."""
    return torch.Generator().manual_seed(seed_from(*parts))


def normal(seed: int, shape: tuple[int, ...]) -> Tensor:
    """Standard normal noise [shape] in float32, drawn on the CPU from one seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class GroupKey:
    """Names one group of a run; every random number of the group is derived from it.

    `prompt_index` counts the prompts drawn in this run, so it also orders the groups; `round` is the refill round.
    """

    seed: int
    iteration: int
    prompt_index: int
    round: int = 0

    def seed_for(self, *path: int | str) -> int:
        """The seed of one draw inside the group: `path` says which (a purpose, a node's path in the tree ...)."""
        return seed_from(self.seed, self.iteration, self.prompt_index, self.round, *path)


PROMPT_INDEX_BITS = 40  # bits of a group's name below which stands the number of its draw


def subgroup(prompt_index: int, number: int) -> int:
    """The name of one of the groups that the samples of a draw fall into; the first is called as the draw itself."""
    return prompt_index + (number << PROMPT_INDEX_BITS)


def prompt_index_of(group: Tensor) -> Tensor:
    """The draw number [B] that each group [B] belongs to."""
    return group & ((1 << PROMPT_INDEX_BITS) - 1)
