"""Answers that begin alike, put into one row in which every shared token stands once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PrefixTree:
    """What is read of n answers, T tokens in all: answer by answer what none before it has."""

    tokens: Tensor  # [T] int64
    step: Tensor  # [T] int64: tokens of its answer before it
    member: Tensor  # [T] int64: the answer that brought it
    # [n, n] int64: how many tokens of the first answer, from its beginning, lead up to the end of what it shares with
    # the member; 0 where it shares nothing with it. A token of the first sees those of the member at lower steps.
    reach: Tensor
    places: tuple[Tensor, ...]  # n times where its tokens stand

    @property
    def is_shared(self) -> bool:
        """Whether an answer sees tokens of another."""
        return bool((self.reach > 0).any())

    @classmethod
    def of(cls, read: Sequence[Tensor], names: Sequence[Tensor] | None) -> "PrefixTree":
        """Of the tokens `read` [t_i] of n answers, which are one where their `names` [t_i] are the same (None: none).

        Tokens of one name have all that stands before them in common, so what an answer shares is its beginning.
        """
        place_of: dict[int, int] = {}
        member_of: list[int] = []
        parts, places, reach = [], [], torch.zeros(len(read), len(read), dtype=torch.int64)
        for number, tokens in enumerate(read):
            own = list(range(len(tokens))) if names is None else names[number].tolist()
            known = [] if names is None else [place_of[name] for name in own if name in place_of]
            for step, place in enumerate(known):
                reach[number, member_of[place]] = step + 1
            first = len(member_of)
            place_of |= {name: first + step for step, name in enumerate(own[len(known) :])}
            member_of += [number] * (len(own) - len(known))
            places.append(torch.tensor([*known, *range(first, len(member_of))], dtype=torch.int64))
            parts.append((tokens[len(known) :], torch.arange(len(known), len(tokens))))
        new, steps = zip(*parts, strict=True) if parts else ((), ())
        empty = torch.zeros(0, dtype=torch.int64)
        member = torch.tensor(member_of, dtype=torch.int64)
        return cls(torch.cat([empty, *new]), torch.cat([empty, *steps]), member, reach, tuple(places))
