"""Answers drawn token by token on a cache: every prompt is read once, every token has a uniform of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.modalities._backbone import Backbone, expand
from mmrl.modalities._chunked import Head
from mmrl.modalities._company import Company
from mmrl.modalities._distribution import Shaping, Support, draw, shaped_log_probs
from mmrl.modalities._inputs import EncodedPrompt, PromptBatch


@dataclass(frozen=True)
class Ending:
    """What ends an answer: an end token, a text in `stop`, or the budget."""

    end_tokens: tuple[int, ...]
    stop: tuple[str, ...]
    decode: Callable[[list[int]], str]
    max_tokens: int

    def ends(self, tokens: Tensor) -> Tensor:
        """[n] bool: whether the last of the tokens [n, t] of each answer ends it by itself."""
        ends = torch.isin(tokens[:, -1], torch.tensor(self.end_tokens, device=tokens.device))
        if self.stop:
            # a token holds at least one byte of text, so a stop text that ends just here lies in as many tokens
            tails = tokens[:, -max(len(text.encode()) for text in self.stop) :].tolist()
            stopped = [any(text in self.decode(tail) for text in self.stop) for tail in tails]
            ends = ends | torch.tensor(stopped, device=tokens.device)
        return ends


@dataclass(frozen=True)
class Drawn:
    """n answers as they were drawn."""

    tokens: Tensor  # [n, T] int64, right-padded with 0
    length: Tensor  # [n] int64, the end token included
    log_prob: Tensor  # [n, T] float32, of the distribution drawn from; 0 in the padding
    is_finished: Tensor  # [n] bool: ended by itself
    support: Support | None  # of the sum(length) tokens, answer by answer; None where nothing is truncated

    @classmethod
    def join(cls, parts: "Sequence[Drawn]") -> "Drawn":
        """All answers, in order."""
        supports = [part.support for part in parts if part.support is not None]
        assert len(supports) in (0, len(parts)), "some answers have a truncated distribution and some have not"
        return cls(
            tokens=join_padded([part.tokens for part in parts]),
            length=torch.cat([part.length for part in parts]),
            log_prob=join_padded([part.log_prob for part in parts]),
            is_finished=torch.cat([part.is_finished for part in parts]),
            support=Support.join(supports) if supports else None,
        )

    def select(self, rows: Tensor) -> "Drawn":
        """The answers `rows` [n], at least 1, as wide as the longest of them."""
        support = self.support
        if support is not None:
            first = self.length.cumsum(0) - self.length
            support = support.select(torch.cat([first[row] + torch.arange(int(self.length[row])) for row in rows]))
        length = self.length[rows]
        tokens, log_prob = (table[rows, : int(length.max())] for table in (self.tokens, self.log_prob))
        return Drawn(tokens, length, log_prob, self.is_finished[rows], support)


def join_padded(tables: Sequence[Tensor]) -> Tensor:
    """Tables [n_i, T_i] as one [sum n_i, max T_i], padded with 0 on the right."""
    return torch.cat(_widened(tables))


def _widened(tables: Sequence[Tensor]) -> list[Tensor]:
    width = max(table.shape[1] for table in tables)
    return [torch.nn.functional.pad(table, (0, width - table.shape[1])) for table in tables]


def uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """[n, count] numbers in [0, 1), a stream of its own for each seed; a longer one begins alike."""
    streams = [torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in seeds]
    return torch.stack(streams)


@torch.no_grad()
def draw_answers(
    backbone: Backbone,
    head: Head,
    prompts: Sequence[EncodedPrompt],
    prompt_of: Tensor,
    uniform: Tensor,
    shaping: Shaping,
    ending: Ending,
    batch_size: int,
    company: Company | None = None,
) -> Drawn | None:
    """Draws n answers: answer i to prompt `prompt_of[i]` (ascending), its tokens by `uniform[i]` [n, max_tokens].

    At most `batch_size` answers are drawn side by side; each prompt is read once for all its answers. In company, where
    n may be 0 (which returns None), every process reads as many prompts and tokens as the one with most.
    """
    drawn = []
    counts = torch.bincount(prompt_of, minlength=len(prompts)).tolist()
    batches = _batches(counts, batch_size) if prompts else []
    for index in range(len(batches) if company is None else company.most(len(batches))):
        numbers = batches[index] if index < len(batches) else range(0)
        rows = ((prompt_of >= numbers.start) & (prompt_of < numbers.stop)).nonzero()[:, 0]
        own = [prompts[number] for number in numbers]
        batch = backbone.batch(own if company is None else company.with_media(own))
        loop = _Loop(backbone, head, batch, shaping, ending, company)
        drawn += loop.answers((prompt_of[rows] - numbers.start).to(backbone.device), uniform[rows], batch_size)
    return Drawn.join(drawn) if drawn else None


def _batches(counts: Sequence[int], size: int) -> list[range]:
    """Runs of prompts with at most `size` answers together; a prompt that has more is alone."""
    runs, start, total = [], 0, 0
    for number, count in enumerate(counts):
        if number > start and total + count > size:
            runs.append(range(start, number))
            start, total = number, 0
        total += count
    return [*runs, range(start, len(counts))]


@dataclass(frozen=True)
class _Loop:
    """Draws n answers side by side; those that have ended leave the batch."""

    backbone: Backbone
    head: Head
    prompts: PromptBatch
    shaping: Shaping
    ending: Ending
    company: Company | None  # then the last row is idle: it ends when no process draws any more

    def answers(self, prompt: Tensor, uniform: Tensor, batch_size: int) -> list[Drawn]:
        """The answers to `prompt` [n] by `uniform` [n, max_tokens], `batch_size` side by side."""
        drawn = []
        first, cache = self.backbone.prefill(self.prompts)
        starts = range(0, len(prompt), batch_size)
        for index in range(len(starts) if self.company is None else self.company.most(len(starts))):
            part = slice(index * batch_size, (index + 1) * batch_size)
            own, given = prompt[part], uniform[part].to(prompt.device)
            count = len(own)
            if self.company is not None:
                own, given = self.company.with_idle_row(own, given, len(self.prompts.last))
            found = self(first[own], expand(cache, own), own, given)
            drawn += [found.select(torch.arange(count))] if count else []
        return drawn

    def __call__(self, hidden: Tensor, cache: object, prompt: Tensor, uniform: Tensor) -> Drawn:
        """hidden: [n, H] behind the first token. cache: of n rows. prompt: [n]. uniform: [n, max_tokens]."""
        count, budget = len(prompt), self.ending.max_tokens
        device = hidden.device
        tokens = torch.zeros(count, budget, dtype=torch.int64, device=device)
        log_prob = torch.zeros(count, budget, device=device)
        length = torch.zeros(count, dtype=torch.int64, device=device)
        is_finished = torch.zeros(count, dtype=torch.bool, device=device)
        supports: list[tuple[Tensor, Support]] = []  # answers and supports of each step
        open_rows = torch.arange(count, device=device)
        mask = torch.nn.functional.pad(self.prompts.mask[prompt], (0, budget), value=1)
        start = self.prompts.next_position[prompt]
        length_before = self.prompts.mask.shape[1]
        for step in range(budget):
            log_probs = shaped_log_probs(self.head.logits(hidden), self.shaping)  # [a, V]
            token = draw(log_probs, uniform[open_rows, step])
            tokens[open_rows, step] = token
            log_prob[open_rows, step] = log_probs.gather(1, token[:, None])[:, 0]
            length[open_rows] = step + 1
            if self.shaping.is_truncated and self.shaping.temperature > 0:
                supports.append((open_rows.cpu(), Support.of(log_probs)))
            ended = self.ending.ends(tokens[open_rows, : step + 1])
            if self.company is not None and step < budget - 1:
                ended[-1] = self.company.most(int((~ended[:-1]).sum())) == 0
            is_finished[open_rows] = ended
            if step == budget - 1 or bool(ended.all()):
                break
            if bool(ended.any()):
                stay = (~ended).nonzero()[:, 0]
                open_rows, token, cache = open_rows[stay], token[stay], expand(cache, stay)
                mask, start = mask[stay], start[stay]
            positions = self.backbone.answer_positions(start, 1, step)
            hidden = self.backbone.go_on(token[:, None], mask[:, : length_before + step + 1], positions, cache)[:, 0]
        width = int(length.max())
        return Drawn(
            tokens[:, :width].cpu(), length.cpu(), log_prob[:, :width].cpu(), is_finished.cpu(), _by_answer(supports)
        )


def _by_answer(steps: Sequence[tuple[Tensor, Support]]) -> Support | None:
    """Supports of every step's answers -> of every answer's steps."""
    if not steps:
        return None
    answers = torch.cat([rows for rows, _ in steps])
    return Support.join([support for _, support in steps]).select(answers.argsort(stable=True))
