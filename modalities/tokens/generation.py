"""Generation of answers, token by token on a cache: every prompt is read once, every token has its own uniform."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Self

import torch
from torch import Tensor

from ..encoding.inputs import EncodedPrompt, PromptBatch
from .backbone import Backbone, expand
from .completions import Completions, StoppingCriteria
from .lockstep import Lockstep
from .log_probs import OutputHead
from .sampling import SamplingDistribution, Support, sample_tokens, sampling_log_probs


@dataclass
class Names:
    """The counter of sampled tokens: each token has a number as its name, by which its support is found."""

    count: int = 0
    supports: list[Support] = field(default_factory=list)

    def add(self, log_probs: Tensor, distribution: SamplingDistribution) -> Tensor:
        """Returns [a] int64: the names of tokens sampled from log-probs [a, V]."""
        first, self.count = self.count, self.count + len(log_probs)
        if distribution.is_truncated and distribution.temperature > 0:
            self.supports.append(Support.of(log_probs))
        return torch.arange(first, self.count, device=log_probs.device)

    def support(self, names: Tensor) -> Support | None:
        """Returns the support of the tokens with these names; None where nothing is truncated."""
        return Support.join(self.supports).select(names) if self.supports else None


@dataclass(frozen=True)
class GenerationState:
    """The state from which n answers continue, side by side."""

    slot: Tensor  # [n] int64: row of the table
    start: Tensor  # [n] int64: position of the first token of the answer
    hidden: Tensor  # [n, H] states that the next token is predicted from
    cache: Any  # of n rows
    mask: Tensor  # [n, L] int64: 1 where the cache holds a token

    def take(self, rows: Tensor) -> "GenerationState":
        """Returns the state of the answers `rows` [k]."""
        return GenerationState(
            self.slot[rows], self.start[rows], self.hidden[rows], expand(self.cache, rows), self.mask[rows]
        )


@dataclass
class Table:
    """The tokens sampled so far, a row for each slot; a split copies the tokens that children share."""

    tokens: Tensor  # [n, T] int64
    log_prob: Tensor  # [n, T] float32
    entropy: Tensor  # [n, T] float32
    name: Tensor  # [n, T] int64
    length: Tensor  # [n] int64
    is_finished: Tensor  # [n] bool

    @classmethod
    def of(cls, count: int, budget: int, device: torch.device) -> Self:
        """Returns an empty table."""
        integers, numbers = torch.zeros(count, budget, dtype=torch.int64), torch.zeros(count, budget)
        length = torch.zeros(count, dtype=torch.int64)
        tables = (integers, numbers, numbers.clone(), integers.clone(), length, length.bool())
        return cls(*(table.to(device) for table in tables))

    @classmethod
    def behind(cls, completions: Completions, budget: int, device: torch.device) -> Self:
        """Returns a table whose answers begin with the given tokens."""
        assert completions.entropy is not None and completions.name is not None, (
            "answers from elsewhere have no entropies and names"
        )
        table = cls.of(len(completions.length), budget, device)
        width = completions.tokens.shape[1]
        table.tokens[:, :width], table.name[:, :width] = completions.tokens.to(device), completions.name.to(device)
        table.log_prob[:, :width], table.entropy[:, :width] = (
            completions.log_prob.to(device),
            completions.entropy.to(device),
        )
        table.length[:] = completions.length.to(device)
        return table

    def put(self, rows: Tensor, token: Tensor, log_probs: Tensor, name: Tensor) -> None:
        """Writes the next token of the slots `rows` [a], sampled from log-probs [a, V]."""
        column = self.length[rows]
        self.tokens[rows, column] = token
        self.log_prob[rows, column] = log_probs.gather(1, token[:, None])[:, 0]
        self.entropy[rows, column] = torch.special.entr(log_probs.exp()).sum(1)
        self.name[rows, column] = name
        self.length[rows] = column + 1

    def split(self, state: GenerationState, branch: int, stride: int) -> GenerationState:
        """Copies each answer of the state to `branch` slots, `stride` apart, the first its own."""
        parent = torch.arange(len(state.slot), device=state.slot.device).repeat_interleave(branch)
        apart = stride * torch.arange(branch, device=state.slot.device).repeat(len(state.slot))
        children = state.take(parent)
        for table in (self.tokens, self.log_prob, self.entropy, self.name, self.length):
            table[children.slot + apart] = table[children.slot]
        return replace(children, slot=children.slot + apart)

    def completions(self, names: Names) -> tuple[Completions, Tensor]:
        """Returns the answers of the slots in use, and these slots [n]."""
        slots = (self.length > 0).nonzero()[:, 0]
        length = self.length[slots].cpu()
        width = int(length.max())
        tables = (table[slots, :width].cpu() for table in (self.tokens, self.log_prob, self.entropy, self.name))
        tokens, log_prob, entropy, name = tables
        support = names.support(name[torch.arange(width) < length[:, None]])
        return Completions(tokens, length, log_prob, self.is_finished[slots].cpu(), support, entropy, name), slots.cpu()


@dataclass(frozen=True)
class AnswerGenerator:
    """The generator of answers by a network, a distribution and stopping criteria.

    With `lockstep` all processes make the same network calls.
    """

    backbone: Backbone
    head: OutputHead
    distribution: SamplingDistribution
    stopping: StoppingCriteria
    batch_size: int  # answers sampled side by side
    lockstep: Lockstep | None = None  # then the last row is a dummy, which ends when no process samples any more

    @torch.no_grad()
    def answers(self, prompts: Sequence[EncodedPrompt], prompt_of: Tensor, uniform: Tensor) -> Completions | None:
        """Samples n answers: answer i to prompt `prompt_of[i]` (ascending), its tokens by `uniform[i]` [n, max_tokens].

        Each prompt is read once for all its answers. In lockstep, where n may be 0 (which returns None), every process
        reads the maximum number of prompts and tokens over processes.
        """
        names = Names()
        completions = [
            part
            for rows, prefilled in self.prefills(prompts, prompt_of)
            for part, _ in prefilled.answers(prompt_of[rows] - prefilled.first, uniform[rows], names)
        ]
        return Completions.stack(completions) if completions else None

    def prefills(
        self, prompts: Sequence[EncodedPrompt], prompt_of: Tensor, leaves: int = 1
    ) -> "Iterator[tuple[Tensor, PrefilledPrompts]]":
        """Reads the prompts of one batch of answers after the other; yields the answers [n] and the read prompts.

        leaves: the maximum number of leaves of each answer.
        """
        counts = torch.bincount(prompt_of, minlength=len(prompts)).tolist()
        size = 0 if self.backbone.one_at_a_time else self.batch_size
        batches = runs([count * leaves for count in counts], size) if prompts else []
        for index in range(len(batches) if self.lockstep is None else self.lockstep.maximum(len(batches))):
            numbers = batches[index] if index < len(batches) else range(0)
            own = [prompts[number] for number in numbers]
            batch = self.backbone.batch(own if self.lockstep is None else self.lockstep.with_media(own))
            rows = ((prompt_of >= numbers.start) & (prompt_of < numbers.stop)).nonzero()[:, 0]
            yield rows, PrefilledPrompts(self, batch, *self.backbone.prefill(batch), numbers.start)

    def generate(
        self, state: GenerationState, table: Table, uniform: Tensor, names: Names, splits: Mapping[int, int]
    ) -> tuple[Completions, Tensor]:
        """Samples the answers of a state to their ends; returns the answers, and the slot [n] of each.

        table: holds the tokens so far. uniform: [slots, max_tokens].
        splits: numbers of children, by the number of tokens before them. An answer of the state has as many slots of
        the table as leaves, depth first. A node is in the first slot of its leaves, and is sampled by the uniforms of
        that slot. An answer that has ended does not split.
        """
        stride, budget = prod(splits.values()), self.stopping.max_tokens
        length = state.mask.shape[1]
        state = replace(state, mask=torch.nn.functional.pad(state.mask, (0, budget), value=1))
        for step in range(budget):
            if (branch := splits.get(step, 1)) > 1:
                stride //= branch
                state = table.split(state, branch, stride)
            log_probs = sampling_log_probs(self.head.logits(state.hidden), self.distribution)  # [a, V]
            token = self.choose(log_probs, uniform[state.slot, table.length[state.slot]])
            table.put(state.slot, token, log_probs, names.add(log_probs, self.distribution))
            is_over = self._is_over(table, state.slot, is_last=step == budget - 1)
            if bool(is_over.all()):
                break
            if bool(is_over.any()):
                stay = (~is_over).nonzero()[:, 0]
                state, token = state.take(stay), token[stay]
            # a split counts tokens from the prompt, so only answers that begin at the prompt split
            positions = self.backbone.answer_positions(state.start + table.length[state.slot] - 1, 1)
            mask = state.mask[:, : length + step + 1]
            hidden = self.backbone.continue_from_cache(token[:, None], mask, positions, state.cache)[:, 0]
            state = replace(state, hidden=hidden)
        return table.completions(names)

    def choose(self, log_probs: Tensor, uniform: Tensor) -> Tensor:
        """Returns the next tokens [a] int64 by log-probs [a, V] and uniform numbers [a]."""
        return sample_tokens(log_probs, uniform)

    def _is_over(self, table: Table, slots: Tensor, *, is_last: bool) -> Tensor:
        """Returns [a] bool: the answers in `slots` [a] that end with their last token, by a criterion or the budget."""
        length = table.length[slots]
        ended = self.stopping.ends(table.tokens[slots], length)
        if self.lockstep is not None and not is_last:
            ended[-1] = self.lockstep.maximum(int((~ended[:-1]).sum())) == 0
        table.is_finished[slots] = ended
        return ended | (length == self.stopping.max_tokens)


@dataclass(frozen=True)
class PrefilledPrompts:
    """Prompts that have been read, and the states from which their answers continue."""

    generator: AnswerGenerator
    batch: PromptBatch
    hidden: Tensor  # [P, H] behind each prompt
    cache: Any
    first: int  # the number of its first prompt among all

    def state(self, prompt: Tensor) -> GenerationState:
        """Returns the state at which answers to the prompts `prompt` [n] begin."""
        slot = torch.arange(len(prompt), device=self.hidden.device)
        start, mask = self.batch.next_position[prompt], self.batch.mask[prompt]
        return GenerationState(slot, start, self.hidden[prompt], expand(self.cache, prompt), mask)

    def answers(
        self, prompt: Tensor, uniform: Tensor, names: Names, splits: Mapping[int, int] | None = None
    ) -> list[tuple[Completions, Tensor]]:
        """Samples answers to `prompt` [n] by `uniform` [n * leaves, max_tokens], a batch side by side.

        Returns the answers of each batch, and the root of each leaf [m], by its place among the n.
        """
        splits, generator, device = splits or {}, self.generator, self.hidden.device
        leaves, completions = prod(splits.values()), []
        prompt, uniform = prompt.to(device), uniform.to(device)
        size = max(1, generator.batch_size // leaves)
        starts = range(0, len(prompt), size)
        for index in range(len(starts) if generator.lockstep is None else generator.lockstep.maximum(len(starts))):
            first = index * size
            own, numbers = prompt[first : first + size], uniform[first * leaves : (first + size) * leaves]
            count = len(own)
            if generator.lockstep is not None:
                own, numbers = generator.lockstep.with_dummy_row(own, numbers, len(self.batch.last))
            state = self.state(own)
            table = Table.of(len(own) * leaves, generator.stopping.max_tokens, device)
            part, slot = generator.generate(replace(state, slot=state.slot * leaves), table, numbers, names, splits)
            if generator.lockstep is not None and count:
                part, slot = part.select(torch.arange(count)), slot[:count]
            completions += [(part, first + slot // leaves)] if count else []
        return completions

    def continue_from_cache(
        self, prompt: Tensor, before: Completions, branch: int, uniform: Tensor, names: Names
    ) -> tuple[Completions, Tensor]:
        """Samples `branch` continuations of each of n begun answers, by `uniform` [n * branch, max_tokens].

        Returns the answers, and the begun answer [m] of each.
        prompt: [n]. before: the begun answers, at least one token each; they are read once more, in one call.
        """
        device = self.hidden.device
        begun = self._read(prompt.to(device), before)
        parent = torch.arange(len(prompt)).repeat_interleave(branch)
        state = replace(begun.take(parent.to(device)), slot=torch.arange(len(parent), device=device))
        table = Table.behind(before.select(parent), self.generator.stopping.max_tokens, device)
        completions, slot = self.generator.generate(state, table, uniform.to(device), names, {})
        return completions, parent[slot]

    def _read(self, prompt: Tensor, before: Completions) -> GenerationState:
        """Returns the state at which begun answers to `prompt` [n] continue.

        Shorter rows are padded in the middle, which is right only for layers that go by the mask alone.
        """
        state = self.state(prompt)
        tokens, length = before.tokens.to(prompt.device), before.length.to(prompt.device)
        is_there = torch.arange(tokens.shape[1], device=prompt.device) < length[:, None]
        mask = torch.cat([state.mask, is_there.to(state.mask)], 1)
        positions = self.generator.backbone.answer_positions(state.start, tokens.shape[1])
        states = self.generator.backbone.continue_from_cache(tokens, mask, positions, state.cache)
        return replace(state, hidden=states[state.slot, length - 1], mask=mask)


def runs(counts: Sequence[int], size: int) -> list[range]:
    """Returns runs of prompts with at most `size` answers together; a prompt that has more is alone."""
    ranges, start, total = [], 0, 0
    for number, count in enumerate(counts):
        if number > start and total + count > size:
            ranges.append(range(start, number))
            start, total = number, 0
        total += count
    return [*ranges, range(start, len(counts))]
