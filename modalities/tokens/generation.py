"""Draws answers token by token on a cache: every prompt is read once, every token has a uniform of its own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Self

import torch
from torch import Tensor

from ..encoding.inputs import EncodedPrompt, PromptBatch
from .backbone import Backbone, expand
from .completions import Completions, Ending
from .lockstep import Lockstep
from .log_probs import Head
from .sampling import Shaping, Support, sample_tokens, shaped_log_probs


@dataclass
class Names:
    """Counts draws: each has a number, under which its support is found."""

    count: int = 0
    supports: list[Support] = field(default_factory=list)

    def add(self, log_probs: Tensor, shaping: Shaping) -> Tensor:
        """[a] int64: the numbers of draws from log-probs [a, V]."""
        first, self.count = self.count, self.count + len(log_probs)
        if shaping.is_truncated and shaping.temperature > 0:
            self.supports.append(Support.of(log_probs))
        return torch.arange(first, self.count, device=log_probs.device)

    def support(self, names: Tensor) -> Support | None:
        return Support.join(self.supports).select(names) if self.supports else None


@dataclass(frozen=True)
class GenerationState:
    """n answers side by side, and where they go on from."""

    slot: Tensor  # [n] int64: where in the table
    start: Tensor  # [n] int64: where the first token of the answer stands
    hidden: Tensor  # [n, H] that the next token is predicted from
    cache: Any  # of n rows
    mask: Tensor  # [n, L] int64: what of the cache is there

    def take(self, rows: Tensor) -> "GenerationState":
        """The answers `rows` [k] of it."""
        return GenerationState(
            self.slot[rows], self.start[rows], self.hidden[rows], expand(self.cache, rows), self.mask[rows]
        )


@dataclass
class Table:
    """What is drawn of each slot; a split copies what its children share."""

    tokens: Tensor  # [n, T] int64
    log_prob: Tensor  # [n, T] float32
    entropy: Tensor  # [n, T] float32
    name: Tensor  # [n, T] int64
    length: Tensor  # [n] int64
    is_finished: Tensor  # [n] bool

    @classmethod
    def of(cls, count: int, budget: int, device: torch.device) -> Self:
        """Nothing drawn yet."""
        integers, numbers = torch.zeros(count, budget, dtype=torch.int64), torch.zeros(count, budget)
        length = torch.zeros(count, dtype=torch.int64)
        tables = (integers, numbers, numbers.clone(), integers.clone(), length, length.bool())
        return cls(*(table.to(device) for table in tables))

    @classmethod
    def behind(cls, completions: Completions, budget: int, device: torch.device) -> Self:
        """The answers go on behind what has been drawn of them."""
        assert completions.entropy is not None and completions.name is not None, (
            "answers from elsewhere do not go on here"
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
        """The next token of the slots `rows` [a], drawn from log-probs [a, V]."""
        column = self.length[rows]
        self.tokens[rows, column] = token
        self.log_prob[rows, column] = log_probs.gather(1, token[:, None])[:, 0]
        self.entropy[rows, column] = torch.special.entr(log_probs.exp()).sum(1)
        self.name[rows, column] = name
        self.length[rows] = column + 1

    def split(self, state: GenerationState, branch: int, stride: int) -> GenerationState:
        """Each answer of the state in `branch` slots, `stride` apart, the first its own."""
        parent = torch.arange(len(state.slot), device=state.slot.device).repeat_interleave(branch)
        apart = stride * torch.arange(branch, device=state.slot.device).repeat(len(state.slot))
        children = state.take(parent)
        for table in (self.tokens, self.log_prob, self.entropy, self.name, self.length):
            table[children.slot + apart] = table[children.slot]
        return replace(children, slot=children.slot + apart)

    def completions(self, names: Names) -> tuple[Completions, Tensor]:
        """The answers of the slots that were used, and these slots [n]."""
        slots = (self.length > 0).nonzero()[:, 0]
        length = self.length[slots].cpu()
        width = int(length.max())
        tables = (table[slots, :width].cpu() for table in (self.tokens, self.log_prob, self.entropy, self.name))
        tokens, log_prob, entropy, name = tables
        support = names.support(name[torch.arange(width) < length[:, None]])
        return Completions(tokens, length, log_prob, self.is_finished[slots].cpu(), support, entropy, name), slots.cpu()


@dataclass(frozen=True)
class Writer:
    """What draws tokens: network, distribution, ending. In `lockstep` all processes make the same calls."""

    backbone: Backbone
    head: Head
    shaping: Shaping
    ending: Ending
    batch_size: int  # answers drawn side by side
    lockstep: Lockstep | None = None  # then the last row is idle: it ends when no process draws any more

    @torch.no_grad()
    def answers(self, prompts: Sequence[EncodedPrompt], prompt_of: Tensor, uniform: Tensor) -> Completions | None:
        """Draws n answers: answer i to prompt `prompt_of[i]` (ascending), its tokens by `uniform[i]` [n, max_tokens].

        Each prompt is read once for all its answers. In lockstep, where n may be 0 (which returns None), every process
        reads as many prompts and tokens as the one with most.
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
        """Reads the prompts, as many at once as have answers for a batch: which answers [n], and what was read.

        leaves: how many each answer may grow into.
        """
        counts = torch.bincount(prompt_of, minlength=len(prompts)).tolist()
        batches = runs([count * leaves for count in counts], self.batch_size) if prompts else []
        for index in range(len(batches) if self.lockstep is None else self.lockstep.maximum(len(batches))):
            numbers = batches[index] if index < len(batches) else range(0)
            own = [prompts[number] for number in numbers]
            batch = self.backbone.batch(own if self.lockstep is None else self.lockstep.with_media(own))
            rows = ((prompt_of >= numbers.start) & (prompt_of < numbers.stop)).nonzero()[:, 0]
            yield rows, PrefilledPrompts(self, batch, *self.backbone.prefill(batch), numbers.start)

    def write(
        self, state: GenerationState, table: Table, uniform: Tensor, names: Names, splits: Mapping[int, int]
    ) -> tuple[Completions, Tensor]:
        """Draws the answers of a state to their ends; the answers, and the slot [n] of each.

        table: what is there already. uniform: [slots, max_tokens].
        splits: children by the number of tokens before them. An answer of the state has as many slots of the table as
        leaves, in the order of a walk through its tree; a node is in the first slot of its leaves, and draws by the
        uniforms of that. One that has ended does not split.
        """
        stride, budget = prod(splits.values()), self.ending.max_tokens
        length = state.mask.shape[1]
        state = replace(state, mask=torch.nn.functional.pad(state.mask, (0, budget), value=1))
        for step in range(budget):
            if (branch := splits.get(step, 1)) > 1:
                stride //= branch
                state = table.split(state, branch, stride)
            log_probs = shaped_log_probs(self.head.logits(state.hidden), self.shaping)  # [a, V]
            token = self.choose(log_probs, uniform[state.slot, table.length[state.slot]])
            table.put(state.slot, token, log_probs, names.add(log_probs, self.shaping))
            is_over = self._is_over(table, state.slot, is_last=step == budget - 1)
            if bool(is_over.all()):
                break
            if bool(is_over.any()):
                stay = (~is_over).nonzero()[:, 0]
                state, token = state.take(stay), token[stay]
            # a split counts tokens from the prompt, so only answers that begin there split
            positions = self.backbone.answer_positions(state.start + table.length[state.slot] - 1, 1)
            mask = state.mask[:, : length + step + 1]
            hidden = self.backbone.go_on(token[:, None], mask, positions, state.cache)[:, 0]
            state = replace(state, hidden=hidden)
        return table.completions(names)

    def choose(self, log_probs: Tensor, uniform: Tensor) -> Tensor:
        """The next tokens [a] int64 by log-probs [a, V] and their numbers [a]."""
        return sample_tokens(log_probs, uniform)

    def _is_over(self, table: Table, slots: Tensor, *, is_last: bool) -> Tensor:
        """[a] bool: the answers in `slots` [a] that end with the token just drawn, by themselves or by the budget."""
        length = table.length[slots]
        ended = self.ending.ends(table.tokens[slots], length)
        if self.lockstep is not None and not is_last:
            ended[-1] = self.lockstep.maximum(int((~ended[:-1]).sum())) == 0
        table.is_finished[slots] = ended
        return ended | (length == self.ending.max_tokens)


@dataclass(frozen=True)
class PrefilledPrompts:
    """Prompts that have been read, and what answers go on from."""

    writer: Writer
    batch: PromptBatch
    hidden: Tensor  # [P, H] behind each prompt
    cache: Any
    first: int  # the number of its first prompt among all

    def state(self, prompt: Tensor) -> GenerationState:
        """Where answers to the prompts `prompt` [n] begin."""
        slot = torch.arange(len(prompt), device=self.hidden.device)
        start, mask = self.batch.next_position[prompt], self.batch.mask[prompt]
        return GenerationState(slot, start, self.hidden[prompt], expand(self.cache, prompt), mask)

    def answers(
        self, prompt: Tensor, uniform: Tensor, names: Names, splits: Mapping[int, int] | None = None
    ) -> list[tuple[Completions, Tensor]]:
        """Answers to `prompt` [n] by `uniform` [n * leaves, max_tokens], and which of the n each leaf [m] grew from.

        As many as make a batch are drawn side by side.
        """
        splits, writer, device = splits or {}, self.writer, self.hidden.device
        leaves, completions = prod(splits.values()), []
        prompt, uniform = prompt.to(device), uniform.to(device)
        size = max(1, writer.batch_size // leaves)
        starts = range(0, len(prompt), size)
        for index in range(len(starts) if writer.lockstep is None else writer.lockstep.maximum(len(starts))):
            first = index * size
            own, given = prompt[first : first + size], uniform[first * leaves : (first + size) * leaves]
            count = len(own)
            if writer.lockstep is not None:
                own, given = writer.lockstep.with_dummy_row(own, given, len(self.batch.last))
            state = self.state(own)
            table = Table.of(len(own) * leaves, writer.ending.max_tokens, device)
            found, slot = writer.write(replace(state, slot=state.slot * leaves), table, given, names, splits)
            if writer.lockstep is not None and count:
                found, slot = found.select(torch.arange(count)), slot[:count]
            completions += [(found, first + slot // leaves)] if count else []
        return completions

    def go_on(
        self, prompt: Tensor, before: Completions, branch: int, uniform: Tensor, names: Names
    ) -> tuple[Completions, Tensor]:
        """`branch` answers by `uniform` [n * branch, max_tokens] behind each of n beginnings, and whose [m] each is.

        prompt: [n]. before: what was drawn of them, at least one token; it is read once more, in one call.
        """
        device = self.hidden.device
        begun = self._read(prompt.to(device), before)
        parent = torch.arange(len(prompt)).repeat_interleave(branch)
        state = replace(begun.take(parent.to(device)), slot=torch.arange(len(parent), device=device))
        table = Table.behind(before.select(parent), self.writer.ending.max_tokens, device)
        completions, slot = self.writer.write(state, table, uniform.to(device), names, {})
        return completions, parent[slot]

    def _read(self, prompt: Tensor, before: Completions) -> GenerationState:
        """Where answers to `prompt` [n] go on behind what was drawn of them.

        What is shorter is padded in its middle, which only layers that go by the mask alone do not mind.
        """
        state = self.state(prompt)
        tokens, length = before.tokens.to(prompt.device), before.length.to(prompt.device)
        is_there = torch.arange(tokens.shape[1], device=prompt.device) < length[:, None]
        mask = torch.cat([state.mask, is_there.to(state.mask)], 1)
        positions = self.writer.backbone.answer_positions(state.start, tokens.shape[1])
        states = self.writer.backbone.go_on(tokens, mask, positions, state.cache)
        return replace(state, hidden=states[state.slot, length - 1], mask=mask)


def runs(counts: Sequence[int], size: int) -> list[range]:
    """Runs of prompts with at most `size` answers together; a prompt that has more is alone."""
    found, start, total = [], 0, 0
    for number, count in enumerate(counts):
        if number > start and total + count > size:
            found.append(range(start, number))
            start, total = number, 0
        total += count
    return [*found, range(start, len(counts))]
