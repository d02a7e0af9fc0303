"""The trace of a rollout of answers, and its tokens as a block of decisions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.data import DecisionBlock
from mmrl.core.views import DecisionView

from ..encoding.inputs import EncodedPrompt
from .completions import Completions
from .sampling import SamplingDistribution


@dataclass(frozen=True)
class TokenTrace:
    """The record from which a token policy evaluates a rollout again."""

    prompts: tuple[EncodedPrompt, ...]  # P
    completions: Completions  # B answers
    distribution: SamplingDistribution
    is_recorded: bool  # log-probs were recorded at sampling; False for answers from elsewhere

    @classmethod
    def join(cls, parts: "Sequence[TokenTrace]") -> "TokenTrace":
        """Joins traces in order; recorded where all are."""
        assert len({part.distribution for part in parts}) == 1, "rollouts of different distributions"
        prompts = tuple(prompt for part in parts for prompt in part.prompts)
        is_recorded = all(part.is_recorded for part in parts)
        return cls(prompts, Completions.join([part.completions for part in parts]), parts[0].distribution, is_recorded)


@dataclass(frozen=True)
class TokenSpans:
    """The tokens of n network calls: for each call one of the samples that share the tokens, and their first and last.

    Answers of a tree share the tokens between two forks, which are one call.
    """

    rows: Tensor  # [n] int64
    start: Tensor  # [n] int64
    stop: Tensor  # [n] int64: above `start`

    @classmethod
    def of(cls, block: DecisionBlock, view: DecisionView) -> "TokenSpans":
        """Returns the spans of the view's calls, in the order of the calls."""
        rows, columns = torch.isin(block.call, view.calls).nonzero().unbind(1)
        call = block.call[rows, columns]
        calls, place = call.unique(return_inverse=True)
        # samples come in order, so a call's first entry is the first token of its first sample
        first = torch.full((len(calls),), len(call)).scatter_reduce(0, place, torch.arange(len(call)), "amin")
        row, start = rows[first], columns[first]
        length = (block.call[row] == calls[:, None]).sum(1)
        return cls(row, start, start + length)

    def edges(self, block: DecisionBlock) -> Tensor:
        """Returns [N] int64: the edges of all tokens of the spans, call by call."""
        column = torch.arange(block.edge.shape[1])
        return block.edge[self.rows][(column >= self.start[:, None]) & (column < self.stop[:, None])]


def answer_block(trace: TokenTrace, prompt_of: Tensor, is_decision: Tensor) -> DecisionBlock:
    """Returns the decisions of answers: an edge for each sampled token, a call for each span that answers share.

    Calls of a group stay together, short groups first; within a group short answers come first, or the order of the
    tree.
    """
    completions, count = trace.completions, len(prompt_of)
    is_edge = (torch.arange(completions.tokens.shape[1]) < completions.length[:, None]) & is_decision[:, None]  # [B, K]
    edge = _numbered(
        torch.arange(is_edge.numel()).view_as(is_edge) if completions.name is None else completions.name, is_edge
    )
    weight = DecisionBlock(edge, edge, is_edge.float()).weight_among(is_edge)
    longest = torch.zeros(len(trace.prompts), dtype=torch.int64).scatter_reduce(
        0, prompt_of, completions.length, "amax"
    )
    longest += torch.tensor([len(prompt) for prompt in trace.prompts])
    is_shared = torch.zeros(len(trace.prompts)).index_add(0, prompt_of, (is_edge & (weight < 1)).any(1).float()) > 0

    def place(row: int) -> tuple[int, int, int]:
        prompt = int(prompt_of[row])
        return int(longest[prompt]), prompt, 0 if is_shared[prompt] else int(completions.length[row])

    order = torch.tensor(sorted(range(count), key=place), dtype=torch.int64)
    call = torch.full_like(edge, -1)
    call[order] = _numbered(first_of_span(edge, weight)[order], is_edge[order])
    facts = {"log_prob": completions.log_prob} if trace.is_recorded else {}
    facts |= {"entropy": completions.entropy} if completions.entropy is not None else {}
    kept = {name: torch.where(is_edge, values, torch.zeros(())) for name, values in facts.items()}
    return DecisionBlock(call, edge, weight, kept)


def first_of_span(edge: Tensor, weight: Tensor) -> Tensor:
    """Returns [B, K] the first edge of the span of each edge; samples share a span from fork to fork."""
    column = torch.arange(edge.shape[1]).expand_as(edge)
    begins = torch.nn.functional.pad(weight[:, 1:] != weight[:, :-1], (1, 0), value=True)
    return edge.gather(1, torch.where(begins, column, 0).cummax(1).values) if edge.numel() else edge


def count_spans(completions: Completions) -> int:
    """Returns the number of network calls that evaluate every sampled token once."""
    if completions.name is None:
        return len(completions.length)
    is_there = torch.arange(completions.tokens.shape[1]) < completions.length[:, None]
    block = DecisionBlock(completions.name, torch.where(is_there, completions.name, -1), is_there.float())
    return len(first_of_span(completions.name, block.weight_among(is_there))[is_there].unique())


def count_sampled_tokens(completions: Completions) -> int:
    """Returns the number of sampled tokens; tokens that answers share count once."""
    is_there = torch.arange(completions.tokens.shape[1]) < completions.length[:, None]
    return int(is_there.sum()) if completions.name is None else len(completions.name[is_there].unique())


def _numbered(names: Tensor, is_there: Tensor) -> Tensor:
    """Returns [B, K]: the names as numbers from 0 in the order of their first appearance; -1 where there is none."""
    _, place = names[is_there].unique(return_inverse=True)
    count = int(place.max()) + 1 if len(place) else 0
    first = torch.full((count,), len(place)).scatter_reduce(0, place, torch.arange(len(place)), "amin")
    number = torch.empty_like(first)
    number[first.argsort()] = torch.arange(count)
    return torch.full_like(names, -1).masked_scatter(is_there, number[place])
