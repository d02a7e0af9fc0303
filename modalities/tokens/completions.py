"""Answers as they were drawn: tokens, what they were drawn from, what ended them, and which of them are one draw."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .sampling import Support


@dataclass(frozen=True)
class Ending:
    """What ends an answer: an end token, a text in `stop`, or the budget."""

    end_tokens: tuple[int, ...]
    stop: tuple[str, ...]
    decode: Callable[[list[int]], str]
    max_tokens: int

    def ends(self, tokens: Tensor, length: Tensor) -> Tensor:
        """[n] bool: whether the last of the `length` [n] tokens [n, T] of each answer ends it by itself."""
        last = tokens.gather(1, length[:, None] - 1)[:, 0]
        ends = torch.isin(last, torch.tensor(self.end_tokens, device=tokens.device))
        if self.stop:
            # a token holds at least one byte of text, so a stop text that ends just here lies in as many tokens
            most = max(len(text.encode()) for text in self.stop)
            tails = [row[max(0, n - most) : n] for row, n in zip(tokens.tolist(), length.tolist(), strict=True)]
            stopped = [any(text in self.decode(tail) for text in self.stop) for tail in tails]
            ends = ends | torch.tensor(stopped, device=tokens.device)
        return ends


@dataclass(frozen=True)
class Completions:
    """n answers as they were drawn."""

    tokens: Tensor  # [n, T] int64, right-padded with 0
    length: Tensor  # [n] int64, the end token included
    log_prob: Tensor  # [n, T] float32, of the distribution drawn from; 0 in the padding
    is_finished: Tensor  # [n] bool: ended by itself
    support: Support | None  # of the sum(length) tokens, answer by answer; None where nothing is truncated
    entropy: Tensor | None = None  # [n, T] float32 nats, of the distribution drawn from; None where it is not known
    name: Tensor | None = None  # [n, T] int64: tokens of one name are one draw; None: every token is a draw of its own

    @classmethod
    def join(cls, parts: "Sequence[Completions]") -> "Completions":
        """All answers, in order; those of two parts share no draw."""
        sizes = [0 if part.name is None or not part.name.numel() else int(part.name.max()) + 1 for part in parts]
        shifted = [
            part if part.name is None else replace(part, name=part.name + sum(sizes[:n]))
            for n, part in enumerate(parts)
        ]
        return cls.stack(shifted)

    @classmethod
    def stack(cls, parts: "Sequence[Completions]") -> "Completions":
        """All answers, in order, with the names of draws as they are."""
        supports = [part.support for part in parts if part.support is not None]
        assert len(supports) in (0, len(parts)), "some answers have a truncated distribution and some have not"
        entropies = [part.entropy for part in parts if part.entropy is not None]
        names = [part.name for part in parts if part.name is not None]
        return cls(
            tokens=join_padded([part.tokens for part in parts]),
            length=torch.cat([part.length for part in parts]),
            log_prob=join_padded([part.log_prob for part in parts]),
            is_finished=torch.cat([part.is_finished for part in parts]),
            support=Support.join(supports) if supports else None,
            entropy=join_padded(entropies) if len(entropies) == len(parts) else None,
            name=join_padded(names) if len(names) == len(parts) else None,
        )

    def select(self, rows: Tensor) -> "Completions":
        """The answers `rows` [n], at least 1, as wide as the longest of them."""
        length = self.length[rows]
        width = int(length.max())
        return Completions(
            tokens=self.tokens[rows, :width],
            length=length,
            log_prob=self.log_prob[rows, :width],
            is_finished=self.is_finished[rows],
            support=self.support_of(rows, torch.zeros_like(length), length),
            entropy=None if self.entropy is None else self.entropy[rows, :width],
            name=None if self.name is None else self.name[rows, :width],
        )

    def support_of(self, rows: Tensor, start: Tensor, stop: Tensor) -> Support | None:
        """Of tokens `start` .. `stop` - 1 ([n] each) of the answers `rows` [n]."""
        if self.support is None:
            return None
        first = self.length.cumsum(0) - self.length
        spans = zip(first[rows].tolist(), start.tolist(), stop.tolist(), strict=True)
        return self.support.select(torch.cat([torch.arange(at + begin, at + end) for at, begin, end in spans]))


def join_padded(tables: Sequence[Tensor]) -> Tensor:
    """Tables [n_i, T_i] as one [sum n_i, max T_i], padded with 0 on the right."""
    return torch.cat(_widened(tables))


def _widened(tables: Sequence[Tensor]) -> list[Tensor]:
    width = max(table.shape[1] for table in tables)
    return [torch.nn.functional.pad(table, (0, width - table.shape[1])) for table in tables]


def uniforms(seeds: Sequence[int | None], count: int) -> Tensor:
    """[n, count] numbers in [0, 1), a stream of its own for each seed; a longer one begins alike.

    Where there is no seed they are -1, which draws the likeliest token.
    """
    none = torch.full((count,), -1.0, dtype=torch.float64)
    streams = [
        none if seed is None else torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=none.dtype)
        for seed in seeds
    ]
    return torch.stack(streams)
