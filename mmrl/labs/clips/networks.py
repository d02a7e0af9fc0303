"""The lab's model, a Qwen2.5-VL in miniature with random weights, its tokenizer and its processor."""

from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from mmrl.labs.clips.drawing import COLOURS, SHAPES, SIZE
from mmrl.labs.clips.world import DURATIONS, STATES, TIME_STEP
from mmrl.labs.screens.networks import CHAT_TEMPLATE, FREQUENCIES, Sizes, new_miniature, word_tokenizer

FRAMES_PER_SECOND = 2  # that the model looks at: two make one step in time, of four tokens
TOKENS_PER_STEP = 4


def new_processor() -> Qwen2_5_VLProcessor:
    """Returns the stock processor, which does not resize clips: four tokens for each second at two frames a second."""
    pixels = {"shortest_edge": SIZE * SIZE, "longest_edge": 4 * SIZE * SIZE}
    return Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(size=pixels),
        new_tokenizer(),
        Qwen2VLVideoProcessor(size=pixels, cap_pixels_per_frame=True),
        chat_template=CHAT_TEMPLATE,
    )


def new_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer in which each word of the world and each time such as 2.5 is one token."""
    spaced = [f" {word}" for word in ("is", "the", *COLOURS, *SHAPES, *STATES)]
    words = [*spaced, "when", " to ", "user", "assistant", "system", *time_words()]
    return word_tokenizer(words, r" to |\p{N}+\.\p{N}+|\p{N}+| ?\p{L}+|\s|.")


def time_words() -> list[str]:
    """Returns the times that an answer can name, every half second."""
    return [f"{TIME_STEP * number:.1f}" for number in range(round(max(DURATIONS) / TIME_STEP) + 1)]


def new_model(processor: Qwen2_5_VLProcessor) -> Qwen2_5_VLForConditionalGeneration:
    """Returns a model of 1.1 million random weights, in which the embeddings of times are ordered."""
    times = time_words()
    sizes = Sizes(
        vision_depth=2,
        vision_inner=144,
        text_inner=256,
        window=2 * SIZE,
        tokens_per_second=2,  # as in the published checkpoints
        axis=FREQUENCIES // 4,  # time has the rest, and the highest
        period=2 * len(times),
        alike=1.5,
    )
    return new_miniature(processor, sizes, times)
