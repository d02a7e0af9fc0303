"""Randomness by key: every random number is a function of its purpose, never of when or where it is drawn."""

import json
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor


def seed_from(*parts: int | str) -> int:
    """Returns a seed of 63 bits that depends on the parts alone: not on the machine, the process or the run."""
    text = json.dumps(parts)  # differs between 1 and "1", and shows where a part ends
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """Returns a generator on the CPU, seeded by `seed_from(*parts)`."""
    return torch.Generator().manual_seed(seed_from(*parts))


def normal(seed: int, shape: tuple[int, ...]) -> Tensor:
    """Returns standard normal noise [shape] in float32, drawn on the CPU from one seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class GroupKey:
    """The name of one group of a run, from which every random number of the group is derived."""

    seed: int  # of the run
    iteration: int  # counted from 0
    prompt_index: int  # the number of prompts that the run took before this one; it also orders the groups
    round: int = 0  # the refill round, 0 for the first groups of an iteration

    def seed_for(self, *path: int | str) -> int:
        """Returns the seed of one random number of the group; `path` names its purpose, its place in a tree ..."""
        return seed_from(self.seed, self.iteration, self.prompt_index, self.round, *path)


PROMPT_INDEX_BITS = 40  # a group's number holds its prompt index in this many low bits


def subgroup(prompt_index: int, number: int) -> int:
    """Returns the number of one of several groups of one prompt; that of group 0 is the prompt index itself."""
    return prompt_index + (number << PROMPT_INDEX_BITS)


def prompt_index_of(group: Tensor) -> Tensor:
    """Returns the prompt index [B] of each group number [B]."""
    return group & ((1 << PROMPT_INDEX_BITS) - 1)
