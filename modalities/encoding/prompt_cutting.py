"""Prompts that are longer than text encoders read: where each is cut, told once by mmrl instead of by the libraries."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from mmrl.core.contracts import Cut

SHOWN = 40  # characters of what is read last
# how the warnings of diffusers and transformers begin
WARNINGS = ("The following part of your input was truncated", "Token indices sequence length is longer than")
_TOKENIZERS = "transformers.tokenization_utils_base"  # who warns there


def cuts_of(tokenizers: Sequence[tuple[Any, int]], texts: Sequence[str]) -> list[tuple[Cut, ...]]:
    """Where each text is cut, by the tokenizers that do, equal ones told once; () for one that all read whole.

    `tokenizers`: each with how many tokens its encoder reads, those at the ends included.
    """
    found: list[dict[Cut, None]] = [{} for _ in texts]
    for tokenizer, limit in tokenizers:
        ends = tokenizer.num_special_tokens_to_add()
        # no tokenizer makes more tokens than a text has bytes, and a word's beginning
        long = [n for n, text in enumerate(texts) if len(text.encode(errors="replace")) + 1 + ends > limit]
        every = tokenizer([texts[n] for n in long], verbose=False)["input_ids"] if long else []
        for n, tokens in zip(long, every, strict=True):
            if len(tokens) > limit:
                read = tokenizer(texts[n], truncation=True, max_length=limit)["input_ids"]
                end = tokenizer.decode(read, skip_special_tokens=True).strip()[-SHOWN:]
                found[n][Cut(_family(tokenizer), limit - ends, len(tokens) - ends, end)] = None
    return [tuple(one) for one in found]


def _family(tokenizer: Any) -> str:
    """CLIP, T5 ..."""
    return type(tokenizer).__name__.removesuffix("Fast").removesuffix("Tokenizer")


@contextmanager
def cuts_untold(pipeline: Any) -> Iterator[None]:
    """Drops what a pipeline and its tokenizers say of texts that are too long, and nothing else that they say."""
    with ExitStack() as ended:
        for name in (type(pipeline).__module__, _TOKENIZERS):
            logger = logging.getLogger(name)
            logger.addFilter(_is_other)
            ended.callback(logger.removeFilter, _is_other)
        yield


def _is_other(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(WARNINGS)
