"""Hidden states of answers: the prompt runs once per group, on a cache, or once per answer.

Maths: docs/maths/token-policies.md#one-row-for-a-prompt-and-its-answers
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..encoding.inputs import EncodedPrompt, Side
from .backbone import Answers, Backbone, expand


def hidden_by_cache(
    backbone: Backbone, prompts: Sequence[EncodedPrompt], answers: Answers, side: Side = "left"
) -> Tensor:
    """Returns [N, H]: hidden states from which the N tokens of all answers are predicted, answer by answer.

    Vision tower and prompt run once, with gradients; the answers continue from their cache. An answer's last token is
    predicted, never read.
    """
    batch = backbone.batch(prompts, side)
    first, cache = backbone.prefill(batch)  # [P, H]
    prompt, tokens = answers.prompt.to(first.device), answers.tokens.to(first.device)
    states = first[prompt][:, None]  # [n, 1, H]
    num_read = answers.tokens.shape[1] - 1
    if num_read > 0:
        is_prompt = batch.mask[prompt]
        later = backbone.continue_from_cache(
            tokens[:, :-1],
            torch.cat([is_prompt, is_prompt.new_ones(len(is_prompt), num_read)], 1),
            backbone.answer_positions(batch.next_position[prompt], num_read),
            expand(cache, prompt),
        )
        states = torch.cat([states, later], 1)  # [n, T, H]
    return answers.of_tokens(states)


def hidden_by_rows(
    backbone: Backbone, prompts: Sequence[EncodedPrompt], answers: Answers, side: Side = "left"
) -> Tensor:
    """Returns the same as `hidden_by_cache` by the plain batch: every answer runs its own prompt and images."""
    batch = backbone.batch([prompts[number] for number in answers.prompt.tolist()], side)
    num_read = answers.tokens.shape[1] - 1
    length = batch.tokens.shape[1]
    read, is_read = answers.tokens[:, :-1].to(batch.mask.device), batch.mask.new_ones(len(batch.mask), num_read)
    states = backbone.hidden(
        torch.cat([batch.tokens, read], 1),
        torch.cat([batch.mask, is_read], 1),
        torch.cat([batch.positions, backbone.answer_positions(batch.next_position, num_read)], 2),
        media=batch.media,
        token_types=torch.cat([batch.token_types, torch.full_like(is_read, backbone.answer_kind)], 1),
    )
    first = states[torch.arange(len(states), device=states.device), batch.last][:, None]
    return answers.of_tokens(torch.cat([first, states[:, length:]], 1))
