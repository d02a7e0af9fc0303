"""Generation of answers, token by token on a cache: every prompt is read once, every token has its own uniform.

An accelerator samples `READ_EVERY` tokens of each answer before the host reads them. An answer that ended in between is
sampled on till then, and what comes after its end is thrown away: as each token has its own uniform, no other answer
changes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Self

import torch
from torch import Tensor

from ..encoding.inputs import EncodedPrompt, PromptBatch, runs
from .backbone import Backbone, expand
from .compiled_step import CompiledStep
from .completions import Completions, StoppingCriteria
from .lockstep import Lockstep
from .log_probs import OutputHead
from .sampling import SamplingDistribution, Support, banned_mask, require_finite, sample_tokens, unchecked_log_probs

READ_EVERY = 16  # tokens of each answer that an accelerator samples between two reads of the host


@dataclass
class Names:
    """The counter of sampled tokens: each token has a number as its name, by which its support is found."""

    count: int = 0
    supports: list[Support] = field(default_factory=list)

    def add(self, count: int, support: Support | None) -> Tensor:
        """Returns [count] int64: the names of sampled tokens with this support."""
        first, self.count = self.count, self.count + count
        if support is not None:
            self.supports.append(support)
        return torch.arange(first, self.count)

    def support(self, names: Tensor) -> Support | None:
        """Returns the support of the tokens with these names; None where nothing is truncated."""
        return Support.join(self.supports).select(names) if self.supports else None


@dataclass(frozen=True)
class GenerationState:
    """The state from which n answers continue, side by side, on the device of the network."""

    slot: Tensor  # [n] int64: row of the table
    start: Tensor  # [n] int64: position of the first token of the answer
    length: Tensor  # [n] int64: tokens of the answer so far
    hidden: Tensor  # [n, H] states that the next token is predicted from
    cache: Any  # of n rows
    mask: Tensor  # [n, L] int64: 1 where the cache holds a token
    is_padded: bool  # whether the mask holds a 0

    def take(self, rows: Tensor) -> "GenerationState":
        """Returns the state of the answers `rows` [k]."""
        return replace(self._rows(rows), cache=expand(self.cache, rows))

    def keep(self, rows: Tensor) -> "GenerationState":
        """Returns the state of the answers `rows` [k]; its own cache keeps these rows alone, layer by layer."""
        self.cache.reorder_cache(rows)
        return self._rows(rows)

    def _rows(self, rows: Tensor) -> "GenerationState":
        """Returns the state of the answers `rows` [k], the cache as it is."""
        return replace(
            self,
            slot=self.slot[rows],
            start=self.start[rows],
            length=self.length[rows],
            hidden=self.hidden[rows],
            mask=self.mask[rows],
        )

    def split(self, branch: int, stride: int) -> "GenerationState":
        """Returns the state of `branch` children of each answer, whose slots are `stride` apart, the first its own."""
        device = self.slot.device
        children = self.take(torch.arange(len(self.slot), device=device).repeat_interleave(branch))
        return replace(children, slot=children.slot + _apart(len(self.slot), branch, stride).to(device))


def _apart(count: int, branch: int, stride: int) -> Tensor:
    """Returns [count * branch] int64: how far the slot of each child is from its parent's."""
    return stride * torch.arange(branch).repeat(count)


@dataclass(frozen=True)
class SampledTokens:
    """The next token of each of n answers, on the device that sampled it."""

    token: Tensor  # [n] int64
    log_prob: Tensor  # [n] float32
    entropy: Tensor  # [n] float32
    largest_logit: Tensor  # [n] float32: no finite number where no token can be sampled
    is_possible: Tensor | None  # [n, V] bool; None where nothing is truncated

    @staticmethod
    def read(steps: "Sequence[SampledTokens]") -> "list[tuple[SampledTokens, Support | None]]":
        """Returns the steps on the host, with the support of each; the host waits once, or twice for supports."""
        # all that is read is exact in float64
        columns = [
            [step.token, step.log_prob, step.entropy, step.largest_logit]
            + ([] if step.is_possible is None else [step.is_possible.sum(1)])
            for step in steps
        ]
        table = torch.stack([torch.stack([column.double() for column in own]) for own in columns]).cpu()  # [k, 4|5, n]
        masks = [step.is_possible for step in steps if step.is_possible is not None]
        supports = Support.among(masks, [*table[:, 4].long()]) if masks else [None] * len(steps)
        return [
            (SampledTokens(token.long(), log_prob.float(), entropy.float(), largest.float(), None), support)
            for (token, log_prob, entropy, largest), support in zip(table[:, :4].unbind(), supports, strict=True)
        ]


@dataclass
class Table:
    """The tokens sampled so far, on the host, a row for each slot; a split copies the tokens that children share."""

    tokens: Tensor  # [n, T] int64
    log_prob: Tensor  # [n, T] float32
    entropy: Tensor  # [n, T] float32
    name: Tensor  # [n, T] int64
    length: Tensor  # [n] int64
    is_finished: Tensor  # [n] bool

    @classmethod
    def of(cls, count: int, budget: int) -> Self:
        """Returns an empty table."""
        integers, numbers = torch.zeros(count, budget, dtype=torch.int64), torch.zeros(count, budget)
        length = torch.zeros(count, dtype=torch.int64)
        return cls(integers, numbers, numbers.clone(), integers.clone(), length, length.bool())

    @classmethod
    def behind(cls, completions: Completions, budget: int) -> Self:
        """Returns a table whose answers begin with the given tokens."""
        assert completions.entropy is not None and completions.name is not None, (
            "answers from elsewhere have no entropies and names"
        )
        table = cls.of(len(completions.length), budget)
        width = completions.tokens.shape[1]
        table.tokens[:, :width], table.name[:, :width] = completions.tokens, completions.name
        table.log_prob[:, :width], table.entropy[:, :width] = completions.log_prob, completions.entropy
        table.length[:] = completions.length
        return table

    def put(self, rows: Tensor, sampled: SampledTokens, of: Tensor, name: Tensor) -> None:
        """Writes the next token of the slots `rows` [a]: those sampled for the answers `of` [a], with their names."""
        column = self.length[rows]
        self.tokens[rows, column] = sampled.token[of]
        self.log_prob[rows, column] = sampled.log_prob[of]
        self.entropy[rows, column] = sampled.entropy[of]
        self.name[rows, column] = name[of]
        self.length[rows] = column + 1

    def split(self, slots: Tensor, branch: int, stride: int) -> Tensor:
        """Copies each answer of `slots` [n] to `branch` slots, `stride` apart, the first its own; returns them all."""
        parents = slots.repeat_interleave(branch)
        children = parents + _apart(len(slots), branch, stride)
        for table in (self.tokens, self.log_prob, self.entropy, self.name, self.length):
            table[children] = table[parents]
        return children

    def completions(self, names: Names) -> tuple[Completions, Tensor]:
        """Returns the answers of the slots in use, and these slots [n]."""
        slots = (self.length > 0).nonzero()[:, 0]
        length = self.length[slots]
        width = int(length.max())
        tables = (table[slots, :width] for table in (self.tokens, self.log_prob, self.entropy, self.name))
        tokens, log_prob, entropy, name = tables
        support = names.support(name[torch.arange(width) < length[:, None]])
        return Completions(tokens, length, log_prob, self.is_finished[slots], support, entropy, name), slots


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
    # tokens of an answer sampled between two reads of the host; None: 1 on a CPU, where reads are free, else READ_EVERY
    read_every: int | None = None
    # the share of the answers side by side that have ended, from which on they leave the cache, which copies it; None:
    # each leaves at once where the host reads every token, else when half have ended
    leave_from: float | None = None
    compiled: CompiledStep | None = None  # in place of the network, for all tokens but an answer's first

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
        batches = runs([count * leaves for count in counts], size)
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
        num_read, read_every = state.mask.shape[1], self._read_every
        state = self._with_room(state, budget)
        slots = stride * torch.arange(len(state.slot))  # of the state, on the host
        is_over = torch.zeros(len(slots), dtype=torch.bool)  # of the answers in the state, as far as the host has read
        is_banned = banned_mask(self.distribution, len(self.head.weight), state.hidden.device)
        unread: list[SampledTokens] = []
        for step in range(budget):
            if (branch := splits.get(step, 1)) > 1:
                stride //= branch
                state, slots = state.split(branch, stride), table.split(slots, branch, stride)
                is_over = is_over.repeat_interleave(branch)
            sampled = self._sample(state, uniform, is_banned)
            state, token = replace(state, length=state.length + 1), sampled.token
            unread.append(sampled)
            # an answer that has ended does not split, so the host reads before a split
            if (step + 1) % read_every == 0 or step + 1 == budget or step + 1 in splits:
                is_over = self._read(unread, table, slots, is_over, names, is_last=step + 1 == budget)
                unread = []
                if bool(is_over.all()):
                    break
                if self._leave(is_over, is_split=step + 1 in splits):
                    stay = (~is_over).nonzero()[:, 0]
                    slots, is_over, stay = slots[stay], is_over[stay], stay.to(token.device, non_blocking=True)
                    state, token = state.keep(stay), token[stay]
            state = replace(state, hidden=self._continue(state, token, num_read + step + 1))
        return table.completions(names)

    def _with_room(self, state: GenerationState, budget: int) -> GenerationState:
        """Returns the state with the mask of all tokens that may come, and with their room where shapes are fixed."""
        cache = state.cache if self.compiled is None else self.compiled.with_fixed_room(state.cache, budget)
        return replace(state, cache=cache, mask=torch.nn.functional.pad(state.mask, (0, budget), value=1))

    def _continue(self, state: GenerationState, token: Tensor, length: int) -> Tensor:
        """Returns the hidden states [n, H] behind the next tokens [n], with which the cache holds `length` tokens."""
        # a split counts tokens from the prompt, so only answers that begin at the prompt split
        positions = self.backbone.answer_positions(state.start + state.length - 1, 1)
        if self.compiled is not None:
            return self.compiled(token[:, None], state.mask, positions, state.cache)[:, 0]
        mask: Tensor | None = state.mask[:, :length]
        if self._read_every > 1:
            mask = self.backbone.unread_mask(state.mask[:, :length], is_padded=state.is_padded)
        return self.backbone.continue_from_cache(token[:, None], mask, positions, state.cache)[:, 0]

    @property
    def _read_every(self) -> int:
        if self.read_every is not None:
            return self.read_every
        return 1 if self.backbone.device.type == "cpu" else READ_EVERY

    def _leave(self, is_over: Tensor, *, is_split: bool) -> bool:
        """Returns whether answers that are over [a] leave the cache now; before a split none may stay."""
        share = self.leave_from if self.leave_from is not None else 0.0 if self._read_every == 1 else 0.5
        return bool(is_over.any()) and (is_split or float(is_over.float().mean()) >= share)

    def _sample(self, state: GenerationState, uniform: Tensor, is_banned: Tensor | None) -> SampledTokens:
        """Samples the next token of each answer; the host reads nothing."""
        log_probs, largest = unchecked_log_probs(self.head.logits(state.hidden), self.distribution, is_banned)  # [a, V]
        # an answer that is over goes on until the host reads, past the budget too
        column = state.length.clamp(max=uniform.shape[1] - 1)
        token = self.choose(log_probs, uniform[state.slot, column])
        log_prob, entropy = log_probs.gather(1, token[:, None])[:, 0], torch.special.entr(log_probs.exp()).sum(1)
        is_cut = self.distribution.is_truncated and self.distribution.temperature > 0
        return SampledTokens(token, log_prob, entropy, largest, log_probs > -math.inf if is_cut else None)

    def choose(self, log_probs: Tensor, uniform: Tensor) -> Tensor:
        """Returns the next tokens [a] int64 by log-probs [a, V] and uniform numbers [a]."""
        return sample_tokens(log_probs, uniform)

    def _read(
        self,
        steps: Sequence[SampledTokens],
        table: Table,
        slots: Tensor,
        is_over: Tensor,
        names: Names,
        *,
        is_last: bool,
    ) -> Tensor:
        """Reads the tokens of the answers in `slots` [a] into the table, each answer as far as it goes.

        Returns [a] bool: the answers that have ended, now by a criterion or the budget, or before (`is_over` [a]).
        Raises DivergedError where an answer that had not ended had no possible token.
        """
        is_over = is_over.clone()
        for sampled, support in SampledTokens.read(steps):
            if bool(is_over.all()):
                break
            largest = sampled.largest_logit.masked_fill(is_over, 0.0)
            require_finite(largest, len(self.head.weight), self.distribution)
            name, own = names.add(len(slots), support), (~is_over).nonzero()[:, 0]
            rows = slots[own]
            table.put(rows, sampled, own, name)
            length = table.length[rows]
            ended = self.stopping.ends(table.tokens[rows], length)
            table.is_finished[rows] = ended
            is_over[own] = ended | (length == self.stopping.max_tokens)
        if self.lockstep is not None and not is_last:
            is_over[-1] = self.lockstep.maximum(int((~is_over[:-1]).sum())) == 0
        return is_over


@dataclass(frozen=True)
class PrefilledPrompts:
    """Prompts that have been read, and the states from which their answers continue."""

    generator: AnswerGenerator
    batch: PromptBatch
    hidden: Tensor  # [P, H] behind each prompt
    cache: Any
    first: int  # the number of its first prompt among all

    def state(self, prompt: Tensor, stride: int = 1) -> GenerationState:
        """Returns the state at which answers to the prompts `prompt` [n] begin, in slots that are `stride` apart."""
        from .cache_room import with_room  # imports transformers

        slot = stride * torch.arange(len(prompt), device=self.hidden.device)
        start, mask = self.batch.next_position[prompt], self.batch.mask[prompt]
        cache, length = with_room(self.cache, prompt, self.generator.stopping.max_tokens), torch.zeros_like(slot)
        return GenerationState(slot, start, length, self.hidden[prompt], cache, mask, self.batch.is_padded)

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
            table = Table.of(len(own) * leaves, generator.stopping.max_tokens)
            part, slot = generator.generate(self.state(own, leaves), table, numbers, names, splits)
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
        table = Table.behind(before.select(parent), self.generator.stopping.max_tokens)
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
        is_padded = state.is_padded or bool((before.length < before.tokens.shape[1]).any())
        hidden = states[state.slot, length - 1]
        return replace(state, length=length, hidden=hidden, mask=mask, is_padded=is_padded)
