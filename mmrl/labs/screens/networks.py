"""The lab's model, a Qwen2.5-VL in miniature with random weights, its tokenizer and its processor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from mmrl.labs.screens.drawing import COLOURS, KINDS, SIZE

WIDTH, VISION_WIDTH, NUM_LAYERS, NUM_HEADS = 128, 96, 4, 4  # of every lab's miniature
FREQUENCIES = WIDTH // NUM_HEADS // 2  # of the rotary positions, shared among time, height and width
NUM_IMAGE_TOKENS = 16
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TAGS = ("<answer>", "</answer>", "<think>", "</think>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Sizes:
    """The sizes in which the labs' models differ."""

    vision_depth: int  # layers, each of which attends to everything
    vision_inner: int  # width of the feed-forward networks of the tower
    text_inner: int  # and of the language model
    window: int  # pixels, of the tower's windows
    tokens_per_second: int  # positions in time that a second of video has
    axis: int  # rotary frequencies of the height, and of the width; time has the rest
    period: int  # steps from number to number in which the slowest Fourier feature of an embedding goes half a turn
    alike: float  # how many steps apart two embeddings are alike
    vision_width: int = VISION_WIDTH  # of the tower


SIZES = Sizes(
    vision_depth=NUM_LAYERS,
    vision_inner=240,
    text_inner=320,
    window=SIZE,
    tokens_per_second=4,
    axis=FREQUENCIES // 3,
    period=2 * SIZE,
    alike=4.0,
)


def new_processor() -> Qwen2_5_VLProcessor:
    """Returns the stock processor, which does not resize screens: 64 patches of 14 pixels, 16 image tokens."""
    pixels = {"shortest_edge": 56 * 56, "longest_edge": SIZE * SIZE}
    return Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(size=pixels),
        new_tokenizer(),
        Qwen2VLVideoProcessor(size=pixels),
        chat_template=CHAT_TEMPLATE,
    )


def new_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer in which each word of the world and each number from 0 to 112 is one token."""
    spaced = [f" {word}" for word in ("the", "of", *COLOURS, *KINDS)]
    words = [*spaced, "click", "box", "user", "assistant", "system", ", ", *number_words()]
    return word_tokenizer(words, r", |\p{N}+| ?\p{L}+|\s|.")


def word_tokenizer(words: list[str], pieces: str) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE, lossless on any text, where each word is one token; `pieces` is the regex of cuts."""
    cut = pre_tokenizers.Split(Regex(pieces), behavior="isolated")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,  # more than the words need: each is merged to one token
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([word for word in words for _ in range(3)], trainer)
    # not special: a decoder that skips special tokens must leave them in the text
    bpe.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL[1:]),
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def number_words() -> list[str]:
    """Returns the numbers that a coordinate can be."""
    return [str(number) for number in range(SIZE + 1)]


def new_model(processor: Qwen2_5_VLProcessor) -> Qwen2_5_VLForConditionalGeneration:
    """Returns a model of 1.49 million random weights, half in the vision tower, with ordered embeddings of numbers."""
    return new_miniature(processor, SIZES, number_words())


def new_miniature(
    processor: Qwen2_5_VLProcessor, sizes: Sizes, ordered: Sequence[str]
) -> Qwen2_5_VLForConditionalGeneration:
    """Returns a Qwen2.5-VL with random weights from torch's global generator, for the tokens of the processor.

    The words `ordered`, numbers or times that are one token each, get embeddings in order.
    """
    ids = {token: processor.tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    config = Qwen2_5_VLConfig(
        text_config=_text_settings(-(-len(processor.tokenizer) // 8) * 8, ids, sizes),
        vision_config={
            "depth": sizes.vision_depth,
            "hidden_size": sizes.vision_width,
            "intermediate_size": sizes.vision_inner,
            "num_heads": NUM_HEADS,
            "out_hidden_size": WIDTH,
            "initializer_range": 0.06,
            "window_size": sizes.window,
            "fullatt_block_indexes": list(range(sizes.vision_depth)),
            "tokens_per_second": sizes.tokens_per_second,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    embeddings: Any = model.get_input_embeddings().weight
    _order(embeddings, processor.tokenizer.convert_tokens_to_ids(list(ordered)), sizes)
    model.generation_config.eos_token_id = ids["<|im_end|>"]
    model.generation_config.pad_token_id = ids["<|endoftext|>"]
    model.eval()
    return model


def _text_settings(num_tokens: int, ids: dict[str, int], sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": num_tokens,
        "hidden_size": WIDTH,
        "intermediate_size": sizes.text_inner,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "initializer_range": 0.06,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [FREQUENCIES - 2 * sizes.axis, sizes.axis, sizes.axis],
        },
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }


@torch.no_grad()
def _order(embeddings: Tensor, ids: list[int], sizes: Sizes) -> None:
    """Gives numbers Fourier features, so that 34 begins close to 35, as it does in a pretrained model.

    Args:
        embeddings: [V, 128], changed in place.
        ids: tokens of the numbers, or times, from the least to the greatest in equal steps.
        sizes: for the longest of the features, and for how far two embeddings are alike, both in steps.
    """
    frequency = torch.pi * torch.arange(1, WIDTH // 2 + 1) / sizes.period
    angle = torch.arange(len(ids), dtype=torch.float32)[:, None] * frequency
    features = torch.cat([angle.cos(), angle.sin()], 1) * torch.exp(-(frequency * sizes.alike).square() / 4).repeat(2)
    embeddings[ids] = features * (embeddings[ids].norm(dim=1).mean() / features.norm(dim=1).mean())
