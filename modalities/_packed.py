"""A prompt and all its answers as one row under a tree mask: one forward pass, no cache, so checkpointing works."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmrl.modalities._attention import FLEX, attention_of, block_mask
from mmrl.modalities._backbone import Answers, Backbone
from mmrl.modalities._inputs import EncodedPrompt, Side, join_media, pad_rows

PROMPT, PADDING = -1, -2  # members that are not answers
Rule = Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]  # row, head, query, key -> bool: sees it


@dataclass(frozen=True)
class PackedRows:
    """One row [prompt, answer 1, answer 2 ...] for each prompt, T tokens with the padding.

    An answer's last token is not there: it is predicted, never read.
    """

    tokens: Tensor  # [P, T] int64
    positions: Tensor  # [A, P, T] int64: every answer starts where the prompt ends
    token_types: Tensor  # [P, T] int64
    member: Tensor  # [P, T] int64: number of the answer within its row; PROMPT, PADDING
    step: Tensor  # [P, T] int64: how many tokens of its own branch stand before it

    def rule(self, window: int | None = None, images_see_ahead: bool = False) -> Rule:
        """A token sees the prompt and its own answer, up to itself. Made of indices: a `mask_mod` of flex_attention.

        window: how many tokens back a sliding layer looks, itself included. images_see_ahead: the tokens of one image
        see each other in both directions, however far apart (Gemma 3).
        """
        member, step = self.member, self.step
        block = _image_blocks(self.token_types) if images_see_ahead else None

        def sees(row: Tensor, _head: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
            is_branch = (member[row, key] == PROMPT) | (member[row, key] == member[row, query])
            distance = step[row, query] - step[row, key]
            allowed = is_branch & (distance >= 0)
            if window is not None:
                allowed = allowed & (distance < window)
            if block is not None:
                allowed = allowed | ((block[row, key] == block[row, query]) & (block[row, query] > 0))
            # padding looks at itself: a row that sees nothing would be NaN
            return (allowed & (member[row, key] != PADDING)) | (query == key)

        return sees

    def may_see(self, window: int | None = None, images_see_ahead: bool = False) -> Tensor:
        """[P, T, T] bool, query by key: the rule at every place."""
        rows, length = self.member.shape
        row, place = (torch.arange(count, device=self.member.device) for count in (rows, length))
        return self.rule(window, images_see_ahead)(row[:, None, None], None, place[:, None], place)


def _image_blocks(token_types: Tensor) -> Tensor:
    """[P, T] number of the run of image tokens that each token is in, 0 for text."""
    is_image = token_types == 1
    starts = is_image & ~torch.nn.functional.pad(is_image, (1, 0))[:, :-1]
    return starts.cumsum(1) * is_image


def hidden_by_packing(
    backbone: Backbone, prompts: Sequence[EncodedPrompt], answers: Answers, side: Side = "left"
) -> Tensor:
    """[N, H]: hidden states that the N tokens of all answers are predicted from, answer by answer."""
    rows, places = _pack(backbone, prompts, answers, side)
    media = join_media([prompt.media for prompt in prompts])
    states = backbone.hidden(
        rows.tokens,
        _masks(backbone, rows),
        rows.positions,
        media={name: tensor.to(backbone.device) for name, tensor in media.items()},
    )
    return states.flatten(0, 1)[places]


def _pack(
    backbone: Backbone, prompts: Sequence[EncodedPrompt], answers: Answers, side: Side
) -> tuple[PackedRows, Tensor]:
    """The rows, and for each of the N tokens the place [N] in the flattened rows that predicts it."""
    members: list[list[int]] = [[] for _ in prompts]
    for number, prompt in enumerate(answers.prompt.tolist()):
        members[prompt].append(number)
    lengths = answers.length.tolist()
    read = [tokens[: length - 1] for tokens, length in zip(answers.tokens.cpu(), lengths, strict=True)]
    packed = [_row(prompts[p], [read[n] for n in own], backbone.num_axes) for p, own in enumerate(members)]
    fills = (backbone.pad_token, 0, 0, PADDING, 0)
    columns = (
        pad_rows(parts, fill, side).to(backbone.device)
        for parts, fill in zip(zip(*packed, strict=True), fills, strict=True)
    )
    tokens, positions, token_types, member, step = columns
    rows = PackedRows(tokens, positions.transpose(0, 1), token_types, member, step)
    total = tokens.shape[1]
    places: list[Tensor] = [torch.empty(0, dtype=torch.int64)] * len(read)
    for number, (prompt, own) in enumerate(zip(prompts, members, strict=True)):
        start = total * number + (total - len(packed[number][0]) if side == "left" else 0)
        offset = start + len(prompt)
        for answer in own:
            count = len(read[answer])
            places[answer] = torch.cat([torch.tensor([start + len(prompt) - 1]), offset + torch.arange(count)])
            offset += count
    return rows, torch.cat(places).to(backbone.device)


def _row(prompt: EncodedPrompt, read: Sequence[Tensor], num_axes: int) -> tuple[Tensor, ...]:
    """tokens, positions, token types, member and step of one row, without padding."""
    counts = [len(tokens) for tokens in read]
    steps = [torch.arange(count) for count in counts]
    member = [torch.full((len(prompt),), PROMPT)] + [torch.full((count,), n) for n, count in enumerate(counts)]
    answer_positions = [(prompt.next_position + step).expand(num_axes, -1) for step in steps]
    return (
        torch.cat([prompt.tokens, *read]),
        torch.cat([prompt.positions, *answer_positions], 1),
        torch.cat([prompt.token_types, torch.zeros(sum(counts), dtype=torch.int64)]),
        torch.cat(member),
        torch.cat([torch.arange(len(prompt)), *(len(prompt) + step for step in steps)]),
    )


def _masks(backbone: Backbone, rows: PackedRows) -> Any:
    """The mask as the attention takes it, one for each kind of layer where the model has several."""
    config, ahead = backbone.model.config.get_text_config(), backbone.reads_token_types
    attention = attention_of(backbone.model)
    full = _as_taken(attention, rows, None, ahead)
    if "sliding_attention" not in (getattr(config, "layer_types", None) or ()):
        return full
    sliding = _as_taken(attention, rows, config.sliding_window, ahead)
    return {"full_attention": full, "sliding_attention": sliding}


def _as_taken(attention: str, rows: PackedRows, window: int | None, ahead: bool) -> Any:
    """A BlockMask for flex_attention, else [P, 1, T, T]: bool for sdpa, float32 to add for the eager way."""
    if attention == FLEX:
        return block_mask(rows.rule(window, ahead), rows.tokens)
    mask = rows.may_see(window, ahead)[:, None]
    if attention != "eager":
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, torch.finfo(torch.float32).min)
