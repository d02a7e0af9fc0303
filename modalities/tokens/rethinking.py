"""Answers that go on: which of a group, behind which trigger, and their further tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.keys import GroupKey
from mmrl.plans.answers import RethinkingPlan

from ..encoding.inputs import EncodedPrompt, pad_rows
from .completions import Completions, uniforms
from .generation import AnswerGenerator, Names


@dataclass(frozen=True)
class BegunAnswers:
    """n answers with a trigger behind them, from which they go on."""

    prompt_of: Tensor  # [n] int64, ascending
    tokens: tuple[Tensor, ...]  # n: those of the answer without its end token, then those of the trigger
    seeds: tuple[int, ...]  # n

    @property
    def completions(self) -> Completions:
        """Returns the tokens as unfinished answers, whose log-probs, entropies and names are not known."""
        table = pad_rows(list(self.tokens), 0, "right")
        length, numbers = torch.tensor([len(row) for row in self.tokens]), torch.zeros(table.shape)
        is_finished = torch.zeros(len(length), dtype=torch.bool)
        return Completions(table, length, numbers, is_finished, None, numbers, torch.zeros_like(table))


def begun_answers(
    completions: Completions,
    prompt_of: Tensor,
    keys: Sequence[GroupKey],
    plan: RethinkingPlan,
    triggers: Sequence[Sequence[int]],
    end_tokens: Sequence[int],
) -> BegunAnswers | None:
    """Returns the answers of groups that go on; None where no answer does.

    Of each group `num_rethought` members are chosen by the key of its prompt, and a trigger for each. Those that were
    cut, or that leave less than `room` tokens behind the trigger, do not go on.
    """
    found: list[tuple[int, Tensor, int]] = []
    for number, key in enumerate(keys):
        rows = (prompt_of == number).nonzero()[:, 0]
        source = torch.Generator().manual_seed(key.seed_for("rethinking"))
        chosen = torch.randperm(len(rows), generator=source)[: plan.num_rethought]
        kinds = torch.randint(len(triggers), (len(chosen),), generator=source)
        for member, kind in sorted(zip(chosen.tolist(), kinds.tolist(), strict=True)):
            row, trigger = int(rows[member]), torch.tensor(triggers[kind])
            answer = completions.tokens[row, : int(completions.length[row])]
            answer = answer[:-1] if int(answer[-1]) in end_tokens else answer
            tokens = torch.cat([answer, trigger])
            if bool(completions.is_finished[row]) and len(tokens) + plan.room <= plan.max_tokens:
                found.append((number, tokens, key.seed_for("rethinking", member)))
    if not found:
        return None
    prompts = torch.tensor([prompt for prompt, *_ in found])
    return BegunAnswers(prompts, tuple(tokens for _, tokens, _ in found), tuple(seed for *_, seed in found))


@torch.no_grad()
def continued(
    generator: AnswerGenerator, prompts: Sequence[EncodedPrompt], begun: BegunAnswers, max_tokens: int
) -> Completions:
    """Samples the further tokens of begun answers, each by its own seed; names of tokens are left out."""
    before, uniform, names = begun.completions, uniforms(begun.seeds, max_tokens), Names()
    parts, places = list[Completions](), list[Tensor]()
    numbers, place = begun.prompt_of.unique(return_inverse=True)
    for rows, prefilled in generator.prefills([prompts[number] for number in numbers.tolist()], place):
        for alike in _alike(before.length[rows], is_free=generator.backbone.goes_by_the_mask):
            for own in rows[alike].split(generator.batch_size):
                prompt = place[own] - prefilled.first
                part, _ = prefilled.continue_from_cache(prompt, before.select(own), 1, uniform[own], names)
                parts, places = [*parts, part], [*places, own]
    whole = Completions.stack(parts).select(torch.cat(places).argsort())
    return Completions(whole.tokens, whole.length, whole.log_prob, whole.is_finished, None, whole.entropy)


def _alike(length: Tensor, *, is_free: bool) -> list[Tensor]:
    """Returns the rows [k] that are read side by side: those of one length, unless layers go by the mask alone."""
    if is_free:
        return [torch.arange(len(length))]
    return [(length == one).nonzero()[:, 0] for one in length.unique()]
