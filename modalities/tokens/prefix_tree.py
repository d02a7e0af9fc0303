"""Answers with shared beginnings, packed into one row in which every shared token stands once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PrefixTree:
    """The T tokens that are read of n answers: answer by answer the tokens that no answer before has."""

    tokens: Tensor  # [T] int64
    step: Tensor  # [T] int64: number of tokens of the answer before each
    member: Tensor  # [T] int64: the answer that brought each
    # [n, n] int64, row i, column j: how many tokens of answer i, from its beginning, lead up to the end of the part
    # that it shares with answer j; 0 where they share nothing. A token of answer i sees tokens of j at lower steps.
    reach: Tensor
    places: tuple[Tensor, ...]  # n times the places of the answer's tokens in the row

    @property
    def is_shared(self) -> bool:
        """Returns whether an answer sees tokens of another answer."""
        return bool((self.reach > 0).any())

    @classmethod
    def of(cls, read: Sequence[Tensor], names: Sequence[Tensor] | None) -> "PrefixTree":
        """Packs the tokens `read` [t_i] of n answers; tokens with the same `names` [t_i] are one (None: none are).

        Tokens with the same name have the same tokens before them, so answers share their beginnings.
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
