"""Prompts longer than text encoders read: where each is cut, reported once by mmrl instead of by the libraries."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from mmrl.core.contracts import Cut

SHOWN = 40  # characters of the end of the part that is read
# how the warnings of diffusers and transformers begin
WARNINGS = ("The following part of your input was truncated", "Token indices sequence length is longer than")
_TOKENIZERS = "transformers.tokenization_utils_base"  # the logger of the warning in transformers


def cuts_of(tokenizers: Sequence[tuple[Any, int]], texts: Sequence[str]) -> list[tuple[Cut, ...]]:
    """Returns where each text is cut, equal cuts of several tokenizers once; () for a text that is read whole.

    `tokenizers`: each with how many tokens its encoder reads, the special tokens at the ends included.
    """
    cuts: list[dict[Cut, None]] = [{} for _ in texts]
    for tokenizer, limit in tokenizers:
        ends = tokenizer.num_special_tokens_to_add()
        # a text has no more tokens than bytes, and one for the beginning of a word
        long = [n for n, text in enumerate(texts) if len(text.encode(errors="replace")) + 1 + ends > limit]
        every = tokenizer([texts[n] for n in long], verbose=False)["input_ids"] if long else []
        for n, tokens in zip(long, every, strict=True):
            if len(tokens) > limit:
                read = tokenizer(texts[n], truncation=True, max_length=limit)["input_ids"]
                end = tokenizer.decode(read, skip_special_tokens=True).strip()[-SHOWN:]
                cuts[n][Cut(_family(tokenizer), limit - ends, len(tokens) - ends, end)] = None
    return [tuple(one) for one in cuts]


def _family(tokenizer: Any) -> str:
    """Returns the family of a tokenizer: CLIP, T5 ..."""
    return type(tokenizer).__name__.removesuffix("Fast").removesuffix("Tokenizer")


@contextmanager
def without_cut_warnings(pipeline: Any) -> Iterator[None]:
    """Drops the warnings of a pipeline and its tokenizers about texts that are too long, and no others."""
    with ExitStack() as ended:
        for name in (type(pipeline).__module__, _TOKENIZERS):
            logger = logging.getLogger(name)
            logger.addFilter(_is_other)
            ended.callback(logger.removeFilter, _is_other)
        yield


def _is_other(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(WARNINGS)
