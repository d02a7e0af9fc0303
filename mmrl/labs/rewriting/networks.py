"""The lab's model and its processor: a miniature Qwen2.5-VL that reads and writes text alone."""

from dataclasses import replace

from transformers import (
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from mmrl.labs.rewriting.world import COLOURS, KINDS, words_of
from mmrl.labs.screens.networks import CHAT_TEMPLATE, SIZES, new_miniature, word_tokenizer

SMALL = replace(SIZES, vision_depth=1, vision_width=32, vision_inner=32)  # the tower is never used
PIXELS = {"shortest_edge": 56 * 56, "longest_edge": 112 * 112}


def new_processor() -> Qwen2_5_VLProcessor:
    """Returns a stock processor in which each word of a request and of a prompt is one token."""
    first = [*words_of((COLOURS,)), *COLOURS]  # a text begins with a colour, without a space
    later = [*words_of(KINDS[1:]), *(word for kind in KINDS[1:] for word in kind)]
    words = [*first, *(f" {word}" for word in later), "user", "assistant", "system"]
    return Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(size=PIXELS),
        word_tokenizer(words, r" ?\p{L}+|\s|."),
        Qwen2VLVideoProcessor(size=PIXELS),
        chat_template=CHAT_TEMPLATE,
    )


def new_model(processor: Qwen2_5_VLProcessor) -> Qwen2_5_VLForConditionalGeneration:
    """Returns a Qwen2.5-VL with random weights, from torch's global generator."""
    return new_miniature(processor, SMALL, [])
