"""Twins of the Qwen families, whose images are grids of patches of any size: Qwen2-VL to Qwen3.5, MoE as well."""

from typing import Any

import transformers

from .text import build_tokenizer, chat_template, text_sizes

_transformers: Any = transformers
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
            "<|video_pad|>")  # fmt: skip
_TEMPLATE = chat_template(
    "<|im_start|>ROLE\n",
    "<|im_end|>\n",
    "<|im_start|>assistant\n",
    "<|vision_start|><|image_pad|><|vision_end|>",
    video="<|vision_start|><|video_pad|><|vision_end|>",
)
# Images and videos in patches of 14 pixels, four of which become one token; at most 16 patches.
GRID = {"size": {"shortest_edge": 4 * 14**2, "longest_edge": 16 * 14**2}, "patch_size": 14, "merge_size": 2}
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 14,
}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}  # half of a head's channels
MOE = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "head_dim": 16,
}
HALF = {**MROPE, "mrope_interleaved": True, "partial_rotary_factor": 0.5}  # half of 16 channels turn


def _tokenizer() -> Any:
    return build_tokenizer(_SPECIAL, eos="<|im_end|>", pad="<|endoftext|>")


def _media(tokenizer: Any) -> dict[str, int]:
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
             "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}  # fmt: skip
    return {name: tokenizer.convert_tokens_to_ids(text) for name, text in names.items()}


def _processor(family: str, tokenizer: Any, video: str = "Qwen2VL") -> Any:
    """Returns a processor of images and videos on the grid."""
    return getattr(_transformers, f"{family}Processor")(
        _transformers.Qwen2VLImageProcessor(**GRID),
        tokenizer,
        getattr(_transformers, f"{video}VideoProcessor")(**GRID),
        chat_template=_TEMPLATE,
    )


def qwen2_vl() -> tuple[Any, Any]:
    """Returns a small Qwen2-VL and its processor."""
    tokenizer = _tokenizer()
    config = _transformers.Qwen2VLConfig(
        text_config=text_sizes(tokenizer, rope_parameters=MROPE),
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 32,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": 14,
        },
        **_media(tokenizer),
    )
    processor = _processor("Qwen2VL", tokenizer)
    return _transformers.Qwen2VLForConditionalGeneration(config), processor


def qwen2_5_vl() -> tuple[Any, Any]:
    """Returns a small Qwen2.5-VL and its processor."""
    tokenizer = _tokenizer()
    vision = {
        **VISION,
        "window_size": 28,
        "fullatt_block_indexes": [1],  # one layer with windows, one without
        "tokens_per_second": 2,  # as in the checkpoints
    }
    config = _transformers.Qwen2_5_VLConfig(
        text_config=text_sizes(tokenizer, rope_parameters=MROPE), vision_config=vision, **_media(tokenizer)
    )
    processor = _processor("Qwen2_5_VL", tokenizer)
    return _transformers.Qwen2_5_VLForConditionalGeneration(config), processor


def qwen3_vl() -> tuple[Any, Any]:
    """Returns a small Qwen3-VL and its processor."""
    tokenizer = _tokenizer()
    vision = {
        **VISION,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0],  # features of this layer enter the language model's first
    }
    config = _transformers.Qwen3VLConfig(
        text_config=text_sizes(tokenizer, rope_parameters={**MROPE, "mrope_interleaved": True}),
        vision_config=vision,
        **_media(tokenizer),
    )
    processor = _processor("Qwen3VL", tokenizer, video="Qwen3VL")
    return _transformers.Qwen3VLForConditionalGeneration(config), processor


def qwen3_vl_moe() -> tuple[Any, Any]:
    """Returns a small Qwen3-VL with experts and its processor."""
    tokenizer = _tokenizer()
    config = _transformers.Qwen3VLMoeConfig(
        text_config=text_sizes(tokenizer, rope_parameters={**MROPE, "mrope_interleaved": True}, **MOE),
        vision_config={**VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        **_media(tokenizer),
    )
    return _transformers.Qwen3VLMoeForConditionalGeneration(config), _processor("Qwen3VL", tokenizer, video="Qwen3VL")


def _qwen3_5(kind: str, **more: Any) -> tuple[Any, Any]:
    tokenizer = _tokenizer()
    config = getattr(_transformers, f"{kind}Config")(
        text_config=text_sizes(tokenizer, rope_parameters=HALF, **more) | LINEAR,
        vision_config={**VISION, "num_position_embeddings": 16},
        **_media(tokenizer),
    )
    model = getattr(_transformers, f"{kind}ForConditionalGeneration")(config)
    return model, _processor("Qwen3VL", tokenizer, video="Qwen3VL")


def qwen3_5() -> tuple[Any, Any]:
    """Returns a small Qwen3.5, one layer of which has a state in the place of a cache, and its processor."""
    return _qwen3_5("Qwen3_5")


def qwen3_5_moe() -> tuple[Any, Any]:
    """Returns the same with experts."""
    return _qwen3_5("Qwen3_5Moe", shared_expert_intermediate_size=32, **MOE)
