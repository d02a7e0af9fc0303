"""A prompt and all its answers as one row under a tree mask: one forward pass, no cache, so checkpointing works.

Maths: docs/maths/token-policies.md#one-row-for-a-prompt-and-its-answers
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..encoding.inputs import EncodedPrompt, Side, pad_rows
from .attention import FLEX, attention_of, block_mask, bucket
from .backbone import Answers, Backbone, Sight
from .prefix_tree import PrefixTree

PROMPT, PADDING = -1, -2  # members that are not answers
PAIRS_AT_ONCE = 2**22  # of queries and keys, where a dense mask is made: the rule holds some int64 for each
DENSE = 2**28  # places of a dense mask above which a log line names flex_attention: a row of 16,384 tokens
log = logging.getLogger(__name__)
Rule = Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]  # row, head, query, key -> bool: sees it


@dataclass(frozen=True)
class PackedRows:
    """One row [prompt, answer 1, answer 2 ...] for each prompt, T tokens with the padding.

    An answer's last token is left out: it is predicted, never read. Of a tree, whose answers share beginnings, a member
    holds the tokens that no member before has; the tokens before these stand in other members.
    """

    tokens: Tensor  # [P, T] int64
    positions: Tensor  # [A, P, T] int64: every answer starts where the prompt ends
    token_types: Tensor  # [P, T] int64
    member: Tensor  # [P, T] int64: number of the answer within its row; PROMPT, PADDING
    step: Tensor  # [P, T] int64: how many tokens of its own branch stand before each
    # [P, M, M] int64, member by member: the step up to which the first sees the second; None: no other members
    reach: Tensor | None = None

    def rule(self, window: int | None = None, sight: Sight | None = None) -> Rule:
        """Returns the rule of the mask, a `mask_mod` of flex_attention: a token sees itself and its branch before it.

        window: how many tokens a sliding layer looks back, the token itself included. sight: the kinds of a prompt's
        tokens that see each other all the same: those of one image (Gemma 3), or all (PaliGemma).
        """
        member, step, reach = self.member, self.step, self.reach
        kind, run = self.token_types, runs_of(self.token_types)

        def sees(row: Tensor, _head: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
            is_branch = (member[row, key] == PROMPT) | (member[row, key] == member[row, query])
            if reach is not None:
                seer, seen = member[row, query], member[row, key]
                is_led = step[row, key] < reach[row, seer.clamp(min=0), seen.clamp(min=0)]
                is_branch = is_branch | (is_led & (seer >= 0) & (seen >= 0))
            distance = step[row, query] - step[row, key]
            allowed = is_branch & (distance >= 0)
            if window is not None:
                allowed = allowed & (distance < window)
            is_prompt = (member[row, key] == PROMPT) & (member[row, query] == PROMPT)
            for pairs, is_there in (
                () if sight is None else ((sight.ahead, distance < 0), (sight.behind, distance >= 0))
            ):
                for of_query, of_key, is_one_run in pairs:
                    is_kind = (kind[row, query] == of_query) & (kind[row, key] == of_key)
                    is_run = (run[row, query] == run[row, key]) == is_one_run
                    allowed = allowed | (is_prompt & is_there & is_kind & is_run)
            # padding sees itself: a row that sees nothing would be NaN
            return (allowed & (member[row, key] != PADDING)) | (query == key)

        return sees

    def may_see(self, window: int | None = None, sight: Sight | None = None) -> Tensor:
        """Returns the rule at every place: [P, T, T] bool, query by key; made in blocks of queries."""
        rows, length = self.member.shape
        row, place = (torch.arange(count, device=self.member.device) for count in (rows, length))
        sees, row = self.rule(window, sight), row[:, None, None]
        found = torch.empty(rows, length, length, dtype=torch.bool, device=self.member.device)
        height = max(1, PAIRS_AT_ONCE // max(1, rows * length))
        for start in range(0, length, height):
            own = slice(start, start + height)
            found[:, own] = sees(row, None, place[own, None], place)
        return found


def runs_of(kinds: Tensor) -> Tensor:
    """Returns the number of the run of equal kinds that each token is in; kinds: [..., T]."""
    starts = kinds[..., 1:] != kinds[..., :-1]
    return torch.nn.functional.pad(starts.cumsum(-1), (1, 0))


def hidden_by_packing(
    backbone: Backbone, prompts: Sequence[EncodedPrompt], answers: Answers, side: Side = "left"
) -> Tensor:
    """Returns [N, H]: hidden states from which the N tokens of all answers are predicted, answer by answer."""
    rows, places = _pack(backbone, prompts, answers, side)
    states = backbone.hidden(
        rows.tokens,
        _masks(backbone, rows),
        rows.positions,
        media=backbone.media(prompts),
    )
    return states.flatten(0, 1)[places]


def _pack(
    backbone: Backbone, prompts: Sequence[EncodedPrompt], answers: Answers, side: Side
) -> tuple[PackedRows, Tensor]:
    """Packs prompts and answers; returns the rows, and the place [N] in the flattened rows that predicts each token."""
    numbers: list[list[int]] = [[] for _ in prompts]
    for number, prompt in enumerate(answers.prompt.tolist()):
        numbers[prompt].append(number)
    tokens, length = answers.tokens.cpu(), answers.length.tolist()
    name = None if answers.name is None else answers.name.cpu()
    trees = [
        PrefixTree.of(
            [tokens[n, : length[n] - 1] for n in own],
            None if name is None else [name[n, : length[n] - 1] for n in own],
        )
        for own in numbers
    ]
    packed = [_row(prompt, tree, backbone.num_axes) for prompt, tree in zip(prompts, trees, strict=True)]
    fills = (backbone.pad_token, 0, 0, PADDING, 0)
    longest = max(len(row[0]) for row in packed)
    # flex_attention gets few lengths; padding sees itself alone
    more = bucket(longest) - longest if attention_of(backbone.model) == FLEX else 0
    ends = (more, 0) if side == "left" else (0, more)
    table, positions, *kinds = (
        torch.nn.functional.pad(pad_rows(parts, fill, side), ends, value=fill).to(backbone.device)
        for parts, fill in zip(zip(*packed, strict=True), fills, strict=True)
    )
    total = table.shape[1]
    begins = answers.start.tolist() if answers.start is not None else [0] * len(length)
    places: list[Tensor] = [torch.empty(0, dtype=torch.int64)] * len(length)
    for row, (prompt, own, tree) in enumerate(zip(prompts, numbers, trees, strict=True)):
        start = total * row + (total - len(packed[row][0]) if side == "left" else 0) + len(prompt)
        for number, place in zip(own, tree.places, strict=True):
            places[number] = start + torch.cat([torch.tensor([-1]), place])[begins[number] :]
    token_types, member, step = kinds
    reach = _reach(trees, [len(prompt) for prompt in prompts], backbone.device)
    rows = PackedRows(table, positions.transpose(0, 1), token_types, member, step, reach)
    return rows, torch.cat(places).to(backbone.device)


def _row(prompt: EncodedPrompt, tree: PrefixTree, num_axes: int) -> tuple[Tensor, ...]:
    """Returns tokens, positions, token types, member and step of one row, without padding."""
    return (
        torch.cat([prompt.tokens, tree.tokens]),
        torch.cat([prompt.positions, (prompt.next_position + tree.step).expand(num_axes, -1)], 1),
        torch.cat([prompt.token_types, torch.zeros_like(tree.tokens)]),
        torch.cat([torch.full((len(prompt),), PROMPT), tree.member]),
        torch.cat([torch.arange(len(prompt)), len(prompt) + tree.step]),
    )


def _reach(trees: Sequence[PrefixTree], offsets: Sequence[int], device: torch.device) -> Tensor | None:
    """Returns the reach [P, M, M] of all rows; None where no answer shares a token with another."""
    if not any(tree.is_shared for tree in trees):
        return None
    most = max(len(tree.reach) for tree in trees)
    reach = torch.zeros(len(trees), most, most, dtype=torch.int64)
    for row, (tree, offset) in enumerate(zip(trees, offsets, strict=True)):
        own = tree.reach
        reach[row, : len(own), : len(own)] = torch.where(own > 0, own + offset, 0)
    return reach.to(device)


def _masks(backbone: Backbone, rows: PackedRows) -> Any:
    """Returns the mask in the form of the attention, one for each kind of layer where the model has several."""
    config = backbone.model.config.get_text_config()
    attention, kinds = attention_of(backbone.model), getattr(config, "layer_types", None) or ()
    # where no layer is named, all have the window, if there is one (Mistral)
    window, sight = None if kinds else getattr(config, "sliding_window", None), backbone.sight
    full = _as_taken(attention, rows, window, sight.get("full_attention"))
    if "sliding_attention" not in kinds:
        return full
    sliding = _as_taken(attention, rows, config.sliding_window, sight.get("sliding_attention"))
    return {"full_attention": full, "sliding_attention": sliding}


@cache
def _warn_of_size(rows: int, length: int) -> None:
    """Says once for each size that a dense mask is large."""
    log.warning(
        "modality.sharing: %d packed rows of about %d tokens have a dense mask of %.1f GB, and all their pairs are "
        "computed; on a GPU set modality.attention.update to flex_attention, or updates.micro_batch lower",
        *(rows, length, rows * length**2 / 1e9),
    )


def _as_taken(attention: str, rows: PackedRows, window: int | None, sight: Sight | None) -> Any:
    """Returns a BlockMask for flex_attention, else [P, 1, T, T]: bool for sdpa, float32 to add for eager attention."""
    if attention == FLEX:
        return block_mask(rows.rule(window, sight), rows.tokens)
    count, length = rows.tokens.shape
    if count * length**2 > DENSE:
        _warn_of_size(count, bucket(length))
    mask = rows.may_see(window, sight)[:, None]
    if attention != "eager":
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, torch.finfo(torch.float32).min)
