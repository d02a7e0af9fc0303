"""Twins of the Gemma families, in which some tokens see those behind them: Gemma 3, Gemma 4, PaliGemma."""

from typing import Any

import transformers

from .text import ROPE, build_tokenizer, chat_template, text_sizes
from .tiled import SIDE, SIGLIP, SQUARE, VISION

_transformers: Any = transformers


def gemma3() -> tuple[Any, Any]:
    """Returns Gemma behind a SigLIP: image tokens see each other, and every other layer looks back 16 tokens only."""
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    special = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", *named.values())
    tokenizer = build_tokenizer(special, eos="<eos>", pad="<pad>", bos="<bos>", named=named)
    sizes = text_sizes(
        tokenizer,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=8,
        rope_parameters={"sliding_attention": ROPE, "full_attention": {**ROPE, "rope_theta": 100000.0}},
    )
    config = _transformers.Gemma3Config(
        text_config=sizes,
        vision_config={**VISION, "vision_use_head": False},
        mm_tokens_per_image=4,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        image_token_index=tokenizer.image_token_id,
    )
    images = _transformers.Gemma3ImageProcessor(size={"height": SIDE, "width": SIDE})
    template = chat_template(
        "<start_of_turn>ROLE\n",
        "<end_of_turn>\n",
        "<start_of_turn>model\n",
        "<start_of_image>",
        before="{{ bos_token }}",
    )
    processor = _transformers.Gemma3Processor(images, tokenizer, image_seq_length=4, chat_template=template)
    return _transformers.Gemma3ForConditionalGeneration(config), processor


def _gemma4(**more: Any) -> tuple[Any, Any]:
    names = {
        "boi_token": "<|image>",
        "eoi_token": "<image|>",
        "image_token": "<|image|>",
        "boa_token": "<|audio>",
        "eoa_token": "<audio|>",
        "audio_token": "<|audio|>",
    }
    special = ("<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>", *names.values(), "<|video|>")
    tokenizer = build_tokenizer(special, eos="<turn|>", pad="<pad>", bos="<bos>", named=names)
    sizes = text_sizes(tokenizer) | {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 16,
        "global_head_dim": 16,
        "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": 0,
    }
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {f"{name}_id": tokenizer.convert_tokens_to_ids(text) for name, text in names.items() if name != "eoa_token"}
    config = _transformers.Gemma4Config(
        text_config={**sizes, "vocab_size_per_layer_input": sizes["vocab_size"], **more},
        vision_config={
            **vision,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 4,
            "pooling_kernel_size": 2,
            "position_embedding_size": 64,
        },
        audio_config=None,
        video_token_id=tokenizer.convert_tokens_to_ids("<|video|>"),
        eoa_token_index=tokenizer.convert_tokens_to_ids(names["eoa_token"]),
        **ids,
    )
    images = {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 2}
    template = chat_template("<|turn>ROLE\n", "<turn|>\n", "<|turn>model\n", "<|image|>", before="{{ bos_token }}")
    processor = _transformers.Gemma4Processor(
        _transformers.Gemma4AudioFeatureExtractor(),
        _transformers.Gemma4ImageProcessor(**images),
        tokenizer,
        _transformers.Gemma4VideoProcessor(**images),
        image_seq_length=70,
        chat_template=template,
    )
    return _transformers.Gemma4ForConditionalGeneration(config), processor


def gemma4() -> tuple[Any, Any]:
    """Returns Gemma 4 as E2B: embeddings for each layer, and layers that share keys and values."""
    return _gemma4(hidden_size_per_layer_input=8, num_kv_shared_layers=2)


def gemma4_ahead() -> tuple[Any, Any]:
    """Returns Gemma 4 as 31B: tokens of an image see each other, and keys are values on full layers."""
    return _gemma4(use_bidirectional_attention="vision", attention_k_eq_v=True, num_global_key_value_heads=1)


def paligemma() -> tuple[Any, Any]:
    """Returns Gemma behind a SigLIP: all tokens of a prompt see each other."""
    tokenizer = build_tokenizer(("<pad>", "<eos>", "<bos>"), eos="<eos>", pad="<pad>", bos="<bos>")
    images = _transformers.SiglipImageProcessor(size=SQUARE)
    images.image_seq_length = 16
    template = chat_template("", "", "", "<image>")  # the checkpoints have none
    processor = _transformers.PaliGemmaProcessor(images, tokenizer, chat_template=template)  # adds tokens
    config = _transformers.PaliGemmaConfig(
        text_config={"model_type": "gemma", **text_sizes(tokenizer, rope_parameters=ROPE)},
        vision_config=SIGLIP,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        projection_dim=32,
        hidden_size=32,
        vocab_size=(len(tokenizer) + 15) // 16 * 16,
    )
    return _transformers.PaliGemmaForConditionalGeneration(config), processor
