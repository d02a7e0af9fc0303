"""Random small twins of Qwen2-VL and Qwen2.5-VL, with their tokenizer and processor."""

from pathlib import Path
from typing import Any, Literal

import torch

from .tiny import byte_tokenizer, randomise

Family = Literal["qwen2_vl", "qwen2_5_vl"]
PATCH = 14  # in pixels
_MEDIA = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *_MEDIA.values())
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_VISION = {"depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": PATCH}
_VISIONS: dict[Family, dict[str, Any]] = {
    "qwen2_vl": {**_VISION, "embed_dim": 32, "mlp_ratio": 2},
    "qwen2_5_vl": {
        **_VISION,
        "intermediate_size": 64,
        "out_hidden_size": 32,
        "window_size": 2 * PATCH,
        "fullatt_block_indexes": [1],  # one layer with windows, one without
    },
}


def tiny_tokenizer() -> Any:
    """Returns a tokenizer of bytes with the marks and the chat template of Qwen."""
    tokenizer = byte_tokenizer(_SPECIAL, eos="<|im_end|>", pad="<|endoftext|>")
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def tiny_config(family: Family, tokenizer: Any, num_marks: int) -> Any:
    """Returns the configuration of a small model, with `num_marks` tokens behind those of the tokenizer."""
    from transformers import Qwen2_5_VLConfig, Qwen2VLConfig

    text = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": len(tokenizer) + num_marks,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]},
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    media = {name: tokenizer.convert_tokens_to_ids(mark) for name, mark in _MEDIA.items()}
    kind: Any = {"qwen2_vl": Qwen2VLConfig, "qwen2_5_vl": Qwen2_5_VLConfig}[family]
    return kind(text_config=text, vision_config=_VISIONS[family], **media)


def tiny_processor(family: Family, tokenizer: Any) -> Any:
    """Returns a processor whose images become 1 to 16 tokens."""
    from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor

    grid: dict[str, Any] = {
        "size": {"shortest_edge": 4 * PATCH**2, "longest_edge": 64 * PATCH**2},
        "patch_size": PATCH,
        "merge_size": 2,
    }
    kind: Any = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor}[family]
    return kind(Qwen2VLImageProcessor(**grid), tokenizer, Qwen2VLVideoProcessor(**grid), chat_template=_TEMPLATE)


def write_tiny_qwen(folder: Path, seed: int, family: Family) -> Any:
    """Writes a random model with its processor as transformers saves one, and returns its configuration."""
    from transformers import AutoModelForImageTextToText

    tokenizer = tiny_tokenizer()
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are drawn anew
        model: Any = AutoModelForImageTextToText.from_config(tiny_config(family, tokenizer, 0))
    randomise(model, torch.Generator().manual_seed(seed))
    model.save_pretrained(folder)
    tiny_processor(family, tokenizer).save_pretrained(folder)
    return model.config
