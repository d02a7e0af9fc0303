"""Sampled answers: tokens with their log-probs, stopping criteria, and tokens that answers of a tree share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .sampling import Support


@dataclass(frozen=True)
class StoppingCriteria:
    """The stopping criteria of an answer: an end token, a text in `stop`, or the budget."""

    end_tokens: tuple[int, ...]
    stop: tuple[str, ...]
    decode: Callable[[list[int]], str]
    max_tokens: int

    def ends(self, tokens: Tensor, length: Tensor) -> Tensor:
        """Returns [n] bool: whether the last of the `length` [n] tokens [n, T] of each answer ends the answer."""
        last = tokens.gather(1, length[:, None] - 1)[:, 0]
        ends = torch.isin(last, torch.tensor(self.end_tokens, device=tokens.device))
        if self.stop:
            # a token holds at least one byte of text, so a stop text at the end lies in at most as many tokens as bytes
            most = max(len(text.encode()) for text in self.stop)
            tails = [row[max(0, n - most) : n] for row, n in zip(tokens.tolist(), length.tolist(), strict=True)]
            stopped = [any(text in self.decode(tail) for text in self.stop) for tail in tails]
            ends = ends | torch.tensor(stopped, dtype=torch.bool, device=tokens.device)
        return ends


@dataclass(frozen=True)
class Completions:
    """n sampled answers."""

    tokens: Tensor  # [n, T] int64, right-padded with 0
    length: Tensor  # [n] int64, the end token included
    log_prob: Tensor  # [n, T] float32, of the sampling distribution; 0 in the padding
    is_finished: Tensor  # [n] bool: ended by an end token or a stop text
    support: Support | None  # of the sum(length) tokens, answer by answer; None where nothing is truncated
    entropy: Tensor | None = None  # [n, T] float32 nats, of the sampling distribution; None where it is not known
    # [n, T] int64: tokens with the same name were sampled once, for several answers; None: each token was by itself.
    name: Tensor | None = None

    @classmethod
    def join(cls, parts: "Sequence[Completions]") -> "Completions":
        """Joins answers in order; answers of different parts share no tokens."""
        sizes = [0 if part.name is None or not part.name.numel() else int(part.name.max()) + 1 for part in parts]
        shifted = [
            part if part.name is None else replace(part, name=part.name + sum(sizes[:n]))
            for n, part in enumerate(parts)
        ]
        return cls.stack(shifted)

    @classmethod
    def stack(cls, parts: "Sequence[Completions]") -> "Completions":
        """Joins answers in order, with the names of tokens as they are."""
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
        """Returns the answers `rows` [n], at least one, as wide as the longest of them."""
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
        """Returns the support of the tokens `start` .. `stop` - 1 ([n] each) of the answers `rows` [n]."""
        if self.support is None:
            return None
        first = self.length.cumsum(0) - self.length
        spans = zip(first[rows].tolist(), start.tolist(), stop.tolist(), strict=True)
        return self.support.select(torch.cat([torch.arange(at + begin, at + end) for at, begin, end in spans]))


def join_padded(tables: Sequence[Tensor]) -> Tensor:
    """Joins tables [n_i, T_i] to one [sum n_i, max T_i], padded with 0 on the right."""
    return torch.cat(_widened(tables))


def _widened(tables: Sequence[Tensor]) -> list[Tensor]:
    width = max(table.shape[1] for table in tables)
    return [torch.nn.functional.pad(table, (0, width - table.shape[1])) for table in tables]


def uniforms(seeds: Sequence[int | None], count: int) -> Tensor:
    """Returns [n, count] uniform numbers in [0, 1), a stream for each seed; a larger count begins with the same.

    For the seed None the numbers are -1, which stands for the likeliest token.
    """
    none = torch.full((count,), -1.0, dtype=torch.float64)
    streams = [
        none if seed is None else torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=none.dtype)
        for seed in seeds
    ]
    return torch.stack(streams)
