"""Twins of the families whose images are tiles of one size: InternVL, Idefics3, LLaVA-OneVision, Gemma 3."""

from typing import Any

import transformers

from .text import build_tokenizer, chat_template, text_sizes

_transformers: Any = transformers
_SIDE, _PATCH = 28, 7  # of a tile, in pixels: 4 x 4 patches
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": _SIDE,
    "patch_size": _PATCH,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def _chatml(image: str) -> str:
    return chat_template("<|im_start|>ROLE\n", "<|im_end|>\n", "<|im_start|>assistant\n", image, video="<video>\n")


def internvl() -> tuple[Any, Any]:
    """Returns Qwen2 behind an InternViT; an image is one tile or several with a small copy of the whole."""
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
             "video_token": "<video>"}  # fmt: skip
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *named.values())
    tokenizer = build_tokenizer(special, eos="<|im_end|>", pad="<|endoftext|>", named=named)
    config = _transformers.InternVLConfig(
        text_config=_transformers.Qwen2Config(**text_sizes(tokenizer, rope_parameters=_ROPE)).to_dict(),
        vision_config={**_VISION, "image_size": [_SIDE, _SIDE], "patch_size": [_PATCH, _PATCH]},
        image_token_id=tokenizer.context_image_token_id,
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    images = _transformers.GotOcr2ImageProcessor(
        size={"height": _SIDE, "width": _SIDE}, crop_to_patches=True, min_patches=1, max_patches=3
    )
    processor = _transformers.InternVLProcessor(
        images,
        tokenizer,
        _transformers.InternVLVideoProcessor(size={"height": _SIDE, "width": _SIDE}),
        image_seq_length=4,
        chat_template=_chatml("<IMG_CONTEXT>\n"),
    )
    return _transformers.InternVLForConditionalGeneration(config), processor


def idefics3() -> tuple[Any, Any]:
    """Returns Llama behind a SigLIP of tiles with rows and columns in words."""
    places = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
    special = ("<|endoftext|>", "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>",
               "<global-img>", *places)  # fmt: skip
    tokenizer = build_tokenizer(special, eos="<end_of_utterance>", pad="<|endoftext|>")
    config = _transformers.Idefics3Config(
        text_config=_transformers.LlamaConfig(**text_sizes(tokenizer, rope_parameters=_ROPE)).to_dict(),
        vision_config=_VISION,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        tie_word_embeddings=False,
    )
    images = _transformers.Idefics3ImageProcessor(
        size={"longest_edge": 2 * _SIDE}, max_image_size={"longest_edge": _SIDE}
    )
    template = chat_template("<|im_start|>ROLE:", "<end_of_utterance>\n", "Assistant:", "<image>")
    processor = _transformers.Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=template)
    return _transformers.Idefics3ForConditionalGeneration(config), processor


def llava_onevision() -> tuple[Any, Any]:
    """Returns Qwen2 behind a SigLIP; a single image is cut into tiles that keep its shape, several are a tile each."""
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>")
    tokenizer = build_tokenizer(special, eos="<|im_end|>", pad="<|endoftext|>")
    pinpoints = [[_SIDE, 2 * _SIDE], [2 * _SIDE, _SIDE], [2 * _SIDE, 2 * _SIDE]]
    config = _transformers.LlavaOnevisionConfig(
        text_config=_transformers.Qwen2Config(**text_sizes(tokenizer, rope_parameters=_ROPE)).to_dict(),
        vision_config={"model_type": "siglip_vision_model", **_VISION, "vision_use_head": False},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=pinpoints,
        tie_word_embeddings=False,
    )
    images = _transformers.LlavaOnevisionImageProcessor(
        size={"height": _SIDE, "width": _SIDE}, image_grid_pinpoints=pinpoints
    )
    processor = _transformers.LlavaOnevisionProcessor(
        images,
        tokenizer,
        _transformers.LlavaOnevisionVideoProcessor(size={"height": _SIDE, "width": _SIDE}),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        chat_template=_chatml("<image>\n"),
    )
    return _transformers.LlavaOnevisionForConditionalGeneration(config), processor


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
        rope_parameters={"sliding_attention": _ROPE, "full_attention": {**_ROPE, "rope_theta": 100000.0}},
    )
    config = _transformers.Gemma3Config(
        text_config=sizes,
        vision_config={**_VISION, "vision_use_head": False},
        mm_tokens_per_image=4,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        image_token_index=tokenizer.image_token_id,
    )
    images = _transformers.Gemma3ImageProcessor(size={"height": _SIDE, "width": _SIDE})
    template = chat_template(
        "<start_of_turn>ROLE\n",
        "<end_of_turn>\n",
        "<start_of_turn>model\n",
        "<start_of_image>",
        before="{{ bos_token }}",
    )
    processor = _transformers.Gemma3Processor(images, tokenizer, image_seq_length=4, chat_template=template)
    return _transformers.Gemma3ForConditionalGeneration(config), processor
