"""The lab's model, a Qwen2.5-VL in miniature with random weights, its tokenizer and its processor."""

from typing import Any

import torch
from torch import Tensor
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from mmrl.labs.clips.drawing import COLOURS, SHAPES, SIZE
from mmrl.labs.clips.world import DURATIONS, STATES, TICK
from mmrl.labs.screens.networks import CHAT_TEMPLATE, SPECIAL, word_tokenizer

WIDTH, VISION_WIDTH, NUM_LAYERS, NUM_VISION_LAYERS, NUM_HEADS = 128, 96, 4, 2, 4
FRAMES_PER_SECOND = 2  # that the model looks at: two make one step in time, of four tokens
TOKENS_PER_STEP = 4


def new_processor() -> Qwen2_5_VLProcessor:
    """The stock processor, without resizing for a clip: four tokens for each second at two frames a second."""
    pixels = {"shortest_edge": SIZE * SIZE, "longest_edge": 4 * SIZE * SIZE}
    return Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(size=pixels),
        new_tokenizer(),
        Qwen2VLVideoProcessor(size=pixels, cap_pixels_per_frame=True),
        chat_template=CHAT_TEMPLATE,
    )


def new_tokenizer() -> PreTrainedTokenizerFast:
    """A word of the world, or a time such as 2.5, is one token."""
    spaced = [f" {word}" for word in ("is", "the", *COLOURS, *SHAPES, *STATES)]
    words = [*spaced, "when", " to ", "user", "assistant", "system", *time_words()]
    return word_tokenizer(words, r" to |\p{N}+\.\p{N}+|\p{N}+| ?\p{L}+|\s|.")


def time_words() -> list[str]:
    """The times that answers are written in, every half second."""
    return [f"{TICK * number:.1f}" for number in range(round(max(DURATIONS) / TICK) + 1)]


def new_model(processor: Qwen2_5_VLProcessor) -> Qwen2_5_VLForConditionalGeneration:
    """1.1 million random weights; embeddings of times in order."""
    ids = {token: processor.tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    config = Qwen2_5_VLConfig(
        text_config=_text_settings(-(-len(processor.tokenizer) // 8) * 8, ids),
        vision_config={
            "depth": NUM_VISION_LAYERS,
            "hidden_size": VISION_WIDTH,
            "intermediate_size": 144,
            "num_heads": NUM_HEADS,
            "out_hidden_size": WIDTH,
            "initializer_range": 0.06,
            "window_size": 2 * SIZE,
            "fullatt_block_indexes": list(range(NUM_VISION_LAYERS)),
            "tokens_per_second": 2,  # as in the published checkpoints
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    embeddings: Any = model.get_input_embeddings().weight
    _order_times(embeddings, processor.tokenizer.convert_tokens_to_ids(time_words()))
    model.generation_config.eos_token_id = ids["<|im_end|>"]
    model.generation_config.pad_token_id = ids["<|endoftext|>"]
    model.eval()
    return model


def _text_settings(num_tokens: int, ids: dict[str, int]) -> dict[str, Any]:
    frequencies = WIDTH // NUM_HEADS // 2
    axis = frequencies // 4  # frequencies of the height, and of the width; time has the rest, and the highest
    return {
        "vocab_size": num_tokens,
        "hidden_size": WIDTH,
        "intermediate_size": 256,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "initializer_range": 0.06,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [frequencies - 2 * axis, axis, axis],
        },
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }


@torch.no_grad()
def _order_times(embeddings: Tensor, ids: list[int], width: float = 1.5) -> None:
    """Gives times Fourier features, so that 2.5 begins close to 3.0, as it does in a pretrained model.

    Args:
        embeddings: [V, 128], changed in place.
        ids: tokens of the times 0.0, 0.5, 1.0 ...
        width: how far in half seconds two embeddings are alike.
    """
    frequency = torch.pi * torch.arange(1, WIDTH // 2 + 1) / (2 * len(ids))
    angle = torch.arange(len(ids), dtype=torch.float32)[:, None] * frequency
    features = torch.cat([angle.cos(), angle.sin()], 1) * torch.exp(-(frequency * width).square() / 4).repeat(2)
    embeddings[ids] = features * (embeddings[ids].norm(dim=1).mean() / features.norm(dim=1).mean())
