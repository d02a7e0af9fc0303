"""Draws answers token by token on a cache: every prompt is read once, every token has a uniform of its own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Self

import torch
from torch import Tensor

from mmrl.modalities._answers import Drawn, Ending
from mmrl.modalities._backbone import Backbone, expand
from mmrl.modalities._chunked import Head
from mmrl.modalities._company import Company
from mmrl.modalities._distribution import Shaping, Support, draw, shaped_log_probs
from mmrl.modalities._inputs import EncodedPrompt, PromptBatch


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
class Front:
    """n answers side by side, and where they go on from."""

    slot: Tensor  # [n] int64: where in the table
    start: Tensor  # [n] int64: where the first token of the answer stands
    hidden: Tensor  # [n, H] that the next token is predicted from
    cache: Any  # of n rows
    mask: Tensor  # [n, L] int64: what of the cache is there

    def take(self, rows: Tensor) -> "Front":
        """The answers `rows` [k] of it."""
        return Front(self.slot[rows], self.start[rows], self.hidden[rows], expand(self.cache, rows), self.mask[rows])


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
    def behind(cls, drawn: Drawn, budget: int, device: torch.device) -> Self:
        """The answers go on behind what has been drawn of them."""
        assert drawn.entropy is not None and drawn.name is not None, "answers from elsewhere do not go on here"
        table = cls.of(len(drawn.length), budget, device)
        width = drawn.tokens.shape[1]
        table.tokens[:, :width], table.name[:, :width] = drawn.tokens.to(device), drawn.name.to(device)
        table.log_prob[:, :width], table.entropy[:, :width] = drawn.log_prob.to(device), drawn.entropy.to(device)
        table.length[:] = drawn.length.to(device)
        return table

    def put(self, rows: Tensor, token: Tensor, log_probs: Tensor, name: Tensor) -> None:
        """The next token of the slots `rows` [a], drawn from log-probs [a, V]."""
        column = self.length[rows]
        self.tokens[rows, column] = token
        self.log_prob[rows, column] = log_probs.gather(1, token[:, None])[:, 0]
        self.entropy[rows, column] = torch.special.entr(log_probs.exp()).sum(1)
        self.name[rows, column] = name
        self.length[rows] = column + 1

    def split(self, front: Front, branch: int, stride: int) -> Front:
        """Each answer of the front in `branch` slots, `stride` apart, the first its own."""
        parent = torch.arange(len(front.slot), device=front.slot.device).repeat_interleave(branch)
        apart = stride * torch.arange(branch, device=front.slot.device).repeat(len(front.slot))
        children = front.take(parent)
        for table in (self.tokens, self.log_prob, self.entropy, self.name, self.length):
            table[children.slot + apart] = table[children.slot]
        return replace(children, slot=children.slot + apart)

    def drawn(self, names: Names) -> tuple[Drawn, Tensor]:
        """The answers of the slots that were used, and these slots [n]."""
        slots = (self.length > 0).nonzero()[:, 0]
        length = self.length[slots].cpu()
        width = int(length.max())
        tables = (table[slots, :width].cpu() for table in (self.tokens, self.log_prob, self.entropy, self.name))
        tokens, log_prob, entropy, name = tables
        support = names.support(name[torch.arange(width) < length[:, None]])
        return Drawn(tokens, length, log_prob, self.is_finished[slots].cpu(), support, entropy, name), slots.cpu()


@dataclass(frozen=True)
class Writer:
    """What draws tokens: network, distribution, ending. In `company` all processes make the same calls."""

    backbone: Backbone
    head: Head
    shaping: Shaping
    ending: Ending
    batch_size: int  # answers drawn side by side
    company: Company | None = None  # then the last row is idle: it ends when no process draws any more

    @torch.no_grad()
    def answers(self, prompts: Sequence[EncodedPrompt], prompt_of: Tensor, uniform: Tensor) -> Drawn | None:
        """Draws n answers: answer i to prompt `prompt_of[i]` (ascending), its tokens by `uniform[i]` [n, max_tokens].

        Each prompt is read once for all its answers. In company, where n may be 0 (which returns None), every process
        reads as many prompts and tokens as the one with most.
        """
        names = Names()
        drawn = [
            part
            for rows, reading in self.readings(prompts, prompt_of)
            for part, _ in reading.answers(prompt_of[rows] - reading.first, uniform[rows], names)
        ]
        return Drawn.stack(drawn) if drawn else None

    def readings(
        self, prompts: Sequence[EncodedPrompt], prompt_of: Tensor, leaves: int = 1
    ) -> "Iterator[tuple[Tensor, Reading]]":
        """Reads the prompts, as many at once as have answers for a batch: which answers [n], and what was read.

        leaves: how many each answer may grow into.
        """
        counts = torch.bincount(prompt_of, minlength=len(prompts)).tolist()
        batches = runs([count * leaves for count in counts], self.batch_size) if prompts else []
        for index in range(len(batches) if self.company is None else self.company.most(len(batches))):
            numbers = batches[index] if index < len(batches) else range(0)
            own = [prompts[number] for number in numbers]
            batch = self.backbone.batch(own if self.company is None else self.company.with_media(own))
            rows = ((prompt_of >= numbers.start) & (prompt_of < numbers.stop)).nonzero()[:, 0]
            yield rows, Reading(self, batch, *self.backbone.prefill(batch), numbers.start)

    def write(
        self, front: Front, table: Table, uniform: Tensor, names: Names, splits: Mapping[int, int]
    ) -> tuple[Drawn, Tensor]:
        """Draws the answers of a front to their ends; the answers, and the slot [n] of each.

        table: what is there already. uniform: [slots, max_tokens].
        splits: children by the number of tokens before them. An answer of the front has as many slots of the table as
        leaves, in the order of a walk through its tree; a node is in the first slot of its leaves, and draws by the
        uniforms of that. One that has ended does not split.
        """
        stride, budget = prod(splits.values()), self.ending.max_tokens
        length = front.mask.shape[1]
        front = replace(front, mask=torch.nn.functional.pad(front.mask, (0, budget), value=1))
        for step in range(budget):
            if (branch := splits.get(step, 1)) > 1:
                stride //= branch
                front = table.split(front, branch, stride)
            log_probs = shaped_log_probs(self.head.logits(front.hidden), self.shaping)  # [a, V]
            token = self.choose(log_probs, uniform[front.slot, table.length[front.slot]])
            table.put(front.slot, token, log_probs, names.add(log_probs, self.shaping))
            is_over = self._is_over(table, front.slot, is_last=step == budget - 1)
            if bool(is_over.all()):
                break
            if bool(is_over.any()):
                stay = (~is_over).nonzero()[:, 0]
                front, token = front.take(stay), token[stay]
            # a split counts tokens from the prompt, so only answers that begin there split
            positions = self.backbone.answer_positions(front.start + table.length[front.slot] - 1, 1)
            mask = front.mask[:, : length + step + 1]
            hidden = self.backbone.go_on(token[:, None], mask, positions, front.cache)[:, 0]
            front = replace(front, hidden=hidden)
        return table.drawn(names)

    def choose(self, log_probs: Tensor, uniform: Tensor) -> Tensor:
        """The next tokens [a] int64 by log-probs [a, V] and their numbers [a]."""
        return draw(log_probs, uniform)

    def _is_over(self, table: Table, slots: Tensor, *, is_last: bool) -> Tensor:
        """[a] bool: the answers in `slots` [a] that end with the token just drawn, by themselves or by the budget."""
        length = table.length[slots]
        ended = self.ending.ends(table.tokens[slots], length)
        if self.company is not None and not is_last:
            ended[-1] = self.company.most(int((~ended[:-1]).sum())) == 0
        table.is_finished[slots] = ended
        return ended | (length == self.ending.max_tokens)


@dataclass(frozen=True)
class Reading:
    """Prompts that have been read, and what answers go on from."""

    writer: Writer
    batch: PromptBatch
    hidden: Tensor  # [P, H] behind each prompt
    cache: Any
    first: int  # the number of its first prompt among all

    def front(self, prompt: Tensor) -> Front:
        """Where answers to the prompts `prompt` [n] begin."""
        slot = torch.arange(len(prompt), device=self.hidden.device)
        start, mask = self.batch.next_position[prompt], self.batch.mask[prompt]
        return Front(slot, start, self.hidden[prompt], expand(self.cache, prompt), mask)

    def answers(
        self, prompt: Tensor, uniform: Tensor, names: Names, splits: Mapping[int, int] | None = None
    ) -> list[tuple[Drawn, Tensor]]:
        """Answers to `prompt` [n] by `uniform` [n * leaves, max_tokens], and which of the n each leaf [m] grew from.

        As many as make a batch are drawn side by side.
        """
        splits, writer, device = splits or {}, self.writer, self.hidden.device
        leaves, drawn = prod(splits.values()), []
        prompt, uniform = prompt.to(device), uniform.to(device)
        size = max(1, writer.batch_size // leaves)
        starts = range(0, len(prompt), size)
        for index in range(len(starts) if writer.company is None else writer.company.most(len(starts))):
            first = index * size
            own, given = prompt[first : first + size], uniform[first * leaves : (first + size) * leaves]
            count = len(own)
            if writer.company is not None:
                own, given = writer.company.with_idle_row(own, given, len(self.batch.last))
            front = self.front(own)
            table = Table.of(len(own) * leaves, writer.ending.max_tokens, device)
            found, slot = writer.write(replace(front, slot=front.slot * leaves), table, given, names, splits)
            if writer.company is not None and count:
                found, slot = found.select(torch.arange(count)), slot[:count]
            drawn += [(found, first + slot // leaves)] if count else []
        return drawn

    def go_on(self, prompt: Tensor, before: Drawn, branch: int, uniform: Tensor, names: Names) -> tuple[Drawn, Tensor]:
        """`branch` answers by `uniform` [n * branch, max_tokens] behind each of n beginnings, and whose [m] each is.

        prompt: [n]. before: what was drawn of them, at least one token; it is read once more, in one call.
        """
        device = self.hidden.device
        begun = self._read(prompt.to(device), before)
        parent = torch.arange(len(prompt)).repeat_interleave(branch)
        front = replace(begun.take(parent.to(device)), slot=torch.arange(len(parent), device=device))
        table = Table.behind(before.select(parent), self.writer.ending.max_tokens, device)
        drawn, slot = self.writer.write(front, table, uniform.to(device), names, {})
        return drawn, parent[slot]

    def _read(self, prompt: Tensor, before: Drawn) -> Front:
        """Where answers to `prompt` [n] go on behind what was drawn of them.

        What is shorter is padded in its middle, which only layers that go by the mask alone do not mind.
        """
        front = self.front(prompt)
        tokens, length = before.tokens.to(prompt.device), before.length.to(prompt.device)
        is_there = torch.arange(tokens.shape[1], device=prompt.device) < length[:, None]
        mask = torch.cat([front.mask, is_there.to(front.mask)], 1)
        positions = self.writer.backbone.answer_positions(front.start, tokens.shape[1])
        states = self.writer.backbone.go_on(tokens, mask, positions, front.cache)
        return replace(front, hidden=states[front.slot, length - 1], mask=mask)


def runs(counts: Sequence[int], size: int) -> list[range]:
    """Runs of prompts with at most `size` answers together; a prompt that has more is alone."""
    found, start, total = [], 0, 0
    for number, count in enumerate(counts):
        if number > start and total + count > size:
            found.append(range(start, number))
            start, total = number, 0
        total += count
    return [*found, range(start, len(counts))]
