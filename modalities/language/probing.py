"""Probes of a type of model that no test runs, when it is loaded: kinds of tokens, masks, joining, output layer.

Nothing here is taken for true: `own_forward` compares what follows from it with the model's own forward pass.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt

from ..encoding.inputs import EncodedPrompt, messages_of
from ..encoding.network import decoder_of, hidden_of_head
from ..encoding.prompt_encoder import PromptEncoder
from ..tokens.backbone import Answers, Backbone, Pairs, Sight
from ..tokens.log_probs import OutputHead
from ..tokens.prefix_cache import hidden_by_rows
from ..tokens.prefix_packing import runs_of
from .probes import IMAGES, SHAPES, TWO_IMAGES

_SHORT = 8  # tokens of a window
log = logging.getLogger(__name__)
# errors that code for another model may raise
RAISED = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError, StopIteration,
          TypeError, ValueError)  # fmt: skip


def image_tokens(encoder: PromptEncoder, prompts: Sequence[Prompt]) -> dict[str, int]:
    """Returns text and id of the added tokens that only media bring into a prompt, and of those named for images."""
    processor, config = encoder.processor, encoder.model.config
    tokenizer = processor.tokenizer
    found = {*(getattr(processor, "image_token_ids", None) or ()), getattr(config, "image_token_id", None)}
    for prompt in (*prompts, *SHAPES):
        with suppress(ConfigError):  # of a shape that this processor does not take
            found |= set(encoder.processed(prompt)["input_ids"][0].tolist())
    messages = messages_of(Prompt("ab"), encoder.template, encoder.system)
    bare = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = sorted((found & set(tokenizer.added_tokens_decoder)) - set(tokenizer(bare)["input_ids"]))
    return dict(zip(tokenizer.convert_ids_to_tokens(ids), ids, strict=True))


def joining_axes(encoder: PromptEncoder, prompts: Sequence[Prompt]) -> dict[str, int] | None:
    """Returns along which axes media are joined, by name; None where no axis explains what the processor makes."""
    try:
        return encoder.joining_axes(prompts)
    except RAISED:  # a processor for one prompt at a time
        return None


@torch.no_grad()
def answer_kind(backbone: Backbone, prompt: EncodedPrompt, tokens: Sequence[int]) -> int:
    """Returns the first of the kinds 0 and 1 under which a later token of an answer moves no state before it.

    PaliGemma's 0 is a prompt that sees itself as a whole; Gemma's 1 an image. tokens: at least two.
    """
    if backbone.kinds is None:
        return 0
    first, *_, last = tokens
    for kind in (0, 1):
        one, two = (
            hidden_by_rows(replace(backbone, answer_kind=kind), [prompt], _answer([first, later, last], backbone))[:2]
            for later in (first, last)
        )
        if torch.allclose(one, two, rtol=0, atol=1e-3 * float(one.abs().max())):
            return kind
    return 0


def _answer(tokens: Sequence[int], backbone: Backbone) -> Answers:
    row = torch.tensor([tokens], device=backbone.device)
    return Answers(torch.zeros_like(row[:, 0]), row, torch.full_like(row[:, 0], len(tokens)))


class _Seen(Exception):
    """The mask has been handed to the language model; the rest of the call is not needed."""


@torch.no_grad()
def sight_of(backbone: Backbone, prompts: Sequence[EncodedPrompt]) -> dict[str, Sight]:
    """Returns, by kind of layer, which kinds of a prompt's tokens see each other beyond the causal mask and its window.

    This is read from the masks that the language model gets for prompts alone, under eager attention.
    """
    if backbone.kinds is None:
        return {}
    with _short_windows(backbone.model.config.get_text_config()):
        masks = [(prompt, _masks(backbone, prompt)) for prompt in prompts]
    return {
        layer: Sight(
            *(
                _pairs([(own[layer], prompt.token_types) for prompt, own in masks], diagonal)
                for diagonal in (1, -_SHORT)
            )
        )
        for layer in masks[0][1]
    }


@contextmanager
def _short_windows(text: Any) -> Iterator[None]:
    """Shortens the windows of sliding layers, so that short prompts reach beyond."""
    window = getattr(text, "sliding_window", None)
    if window is not None:
        text.sliding_window = _SHORT
    try:
        yield
    finally:
        if window is not None:
            text.sliding_window = window


def _masks(backbone: Backbone, prompt: EncodedPrompt) -> dict[str, Tensor]:
    """Returns the masks [L, L] bool, by kind of layer, that the language model gets; none where it makes its own."""
    text, seen = backbone.model.config.get_text_config(), list[Any]()

    def keep(_decoder: Any, _arguments: Any, given: Mapping[str, Any]) -> None:
        seen.append(given.get("attention_mask"))
        raise _Seen

    attention, text._attn_implementation = text._attn_implementation, "eager"
    handle = decoder_of(backbone.model).register_forward_pre_hook(keep, with_kwargs=True)
    try:
        batch = backbone.batch([prompt])
        with suppress(_Seen):
            backbone.hidden(batch.tokens, batch.mask, batch.positions, media=batch.media, token_types=batch.token_types)
    finally:
        handle.remove()
        text._attn_implementation = attention
    mask = seen[0]
    by_layer = mask if isinstance(mask, dict) else dict.fromkeys(("full_attention", "sliding_attention"), mask)
    return {
        layer: (one[0, 0] if one.dtype == torch.bool else one[0, 0] >= 0).cpu()
        for layer, one in by_layer.items()
        if isinstance(one, Tensor) and one.ndim == 4
    }


def _pairs(masks: Sequence[tuple[Tensor, Tensor]], diagonal: int) -> Pairs:
    """Returns the pairs of kinds whose tokens see each other wherever they stand on one side of a diagonal.

    masks: [L, L] of each prompt, with the kinds [L] of its tokens. diagonal: 1 ahead, below 0 so far behind.
    """
    yes, no = set[tuple[int, int, bool]](), set[tuple[int, int, bool]]()
    for mask, kinds in masks:
        run, there = runs_of(kinds), torch.ones_like(mask)
        there = there.triu(diagonal) if diagonal > 0 else there.tril(diagonal)
        for query in kinds.unique().tolist():
            for key in kinds.unique().tolist():
                of_kinds = there & (kinds[:, None] == query) & (kinds == key)
                for is_one_run in (True, False):
                    where = of_kinds & ((run[:, None] == run) == is_one_run)
                    if where.any():
                        (yes if mask[where].all() else no).add((query, key, is_one_run))
    return frozenset(yes - no)


@torch.no_grad()
def probed_head(model: Any, declared: OutputHead, given: Mapping[str, Tensor]) -> OutputHead:
    """Returns the output layer as transformers' class computes it: its scale is asked, not read from the config.

    given: of one prompt, all that the processor makes. Raises ConfigError where a scale or the config's softcap do not
    explain the model's own logits.
    """
    _, raw, own = hidden_of_head(model, dict(given))
    raw, size = raw[-1].float(), torch.finfo(own.dtype).eps
    own = own[-1].float()
    atol = 8 * size * float(own.abs().max())
    if torch.allclose(declared.cap(raw * declared.scale), own, rtol=0, atol=atol):
        return declared
    scale = float(own @ raw / (raw @ raw))
    if not torch.allclose(raw * scale, own, rtol=0, atol=atol):
        raise ConfigError(
            f"modality.model: logits of {model.config.model_type!r} are neither its output layer times a number nor "
            "under the softcap of its config; log-probs would be wrong"
        )
    scale = 1.0 if abs(scale - 1) < 1e-3 else scale
    log.warning(
        "modality.model: the config of %r has a scale of logits of %.4g, and transformers computes with %.4g; the run "
        "does as transformers does",
        *(model.config.model_type, declared.scale, scale),
    )
    return replace(declared, scale=scale, softcap=None)


def probed_backbone(
    backbone: Backbone, encoder: PromptEncoder, prompts: Sequence[Prompt], tokens: Iterable[int]
) -> Backbone:
    """Returns the backbone with all that model and processor tell of prompts; tokens: of a text, for answers.

    Raises ConfigError for a processor that makes columns of tokens which answers would need, too.
    """
    if columns := encoder.columns_of_tokens(IMAGES):
        raise ConfigError(
            f"modality.model: the processor of type {encoder.model.config.model_type!r} makes {', '.join(columns)}, "
            "with a column for each token of the prompt, and mmrl does not know what stands there for the tokens of an "
            "answer; models whose text reads images by cross-attention are not supported"
        )
    axes = joining_axes(encoder, IMAGES)
    if axes is None:
        log.warning(
            "modality.model: media of several prompts cannot be joined for a model of type %r; prompts are computed "
            "one at a time",
            encoder.model.config.model_type,
        )
    backbone = replace(backbone, axes=axes or {}, one_at_a_time=axes is None)
    encoded = encoder(prompts[-1:])
    backbone = replace(backbone, answer_kind=answer_kind(backbone, encoded[0], list(tokens)))
    with suppress(*RAISED):  # some read one image alone
        encoded = [*encoded, *encoder([TWO_IMAGES])]
    return replace(backbone, sight=sight_of(backbone, encoded))
