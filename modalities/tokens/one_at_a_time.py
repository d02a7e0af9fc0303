"""Hidden states of answers where prompts cannot stand in one batch: a prompt, or an answer, at a time."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..encoding.inputs import EncodedPrompt
from .backbone import Answers, Backbone

HiddenStates = Callable[[Backbone, Sequence[EncodedPrompt], Answers], Tensor]


def hidden_one_at_a_time(
    hidden_states: HiddenStates,
    backbone: Backbone,
    prompts: Sequence[EncodedPrompt],
    answers: Answers,
    *,
    by_answer: bool,
) -> Tensor:
    """Returns [N, H] in the order of `hidden_states`, which is called once for each prompt, or for each answer.

    by_answer: for plain rows, where even two rows of one prompt would be two prompts.
    """
    numbers = torch.arange(len(answers.prompt), device=answers.prompt.device)
    groups = (
        list(numbers[:, None])
        if by_answer
        else [numbers[answers.prompt == prompt] for prompt in answers.prompt.unique().tolist()]
    )
    states: dict[int, Tensor] = {}
    for rows in groups:
        own = _selected(answers, rows)
        found = hidden_states(backbone, [prompts[int(answers.prompt[rows[0]])]], own)
        states |= zip(rows.tolist(), found.split(own.is_token.sum(1).tolist()), strict=True)
    return torch.cat([states[row] for row in range(len(numbers))])


def _selected(answers: Answers, rows: Tensor) -> Answers:
    """Returns the answers `rows` to one prompt, which becomes the first."""
    start, name = (None if table is None else table[rows] for table in (answers.start, answers.name))
    width = int(answers.length[rows].max())
    return replace(
        answers,
        prompt=torch.zeros_like(rows),
        tokens=answers.tokens[rows, :width],
        length=answers.length[rows],
        start=start,
        name=None if name is None else name[:, :width],
    )
