"""Twins of other families whose images are grids of patches of any size: GLM, Mistral 3, Kimi, LFM2-VL, MiniCPM-V."""

from typing import Any

import transformers

from .qwen import GRID, HALF, LINEAR, MROPE
from .qwen import VISION as QWEN_VISION
from .text import ROPE, build_tokenizer, chat_template, chatml_template, chatml_tokenizer, text_sizes
from .tiled import SIDE, VISION

_transformers: Any = transformers


def _glm(kind: str) -> tuple[Any, Any]:
    image = ("<|begin_of_image|>", "<|image|>", "<|end_of_image|>")
    video = ("<|begin_of_video|>", "<|video|>", "<|end_of_video|>")
    special = ("<|endoftext|>", "<|user|>", "<|assistant|>", *image, *video)
    tokenizer = build_tokenizer(special, eos="<|user|>", pad="<|endoftext|>")
    names = [f"{media}{place}_token_id" for media in ("image", "video") for place in ("_start", "", "_end")]
    config = getattr(_transformers, f"{kind}Config")(
        text_config={
            "model_type": "glm4v_text",
            **text_sizes(tokenizer, rope_parameters={**MROPE, "partial_rotary_factor": 1.0}),
        },
        vision_config={"model_type": "glm4v_vision", **QWEN_VISION, "image_size": 56},
        **{name: tokenizer.convert_tokens_to_ids(text) for name, text in zip(names, [*image, *video], strict=True)},
    )
    size = {"shortest_edge": 2 * 4 * 14**2, "longest_edge": 2 * 16 * 14**2}  # counts two frames
    processor = getattr(_transformers, f"{kind}Processor")(
        getattr(_transformers, f"{kind}ImageProcessor")(**GRID | {"size": size}),
        tokenizer,
        getattr(_transformers, f"{kind}VideoProcessor")(**GRID | {"size": size}),
        chat_template=chat_template("<|ROLE|>\n", "", "<|assistant|>\n", "".join(image)),
    )
    return getattr(_transformers, f"{kind}ForConditionalGeneration")(config), processor


def glm46v() -> tuple[Any, Any]:
    """Returns a small GLM-4.6V and its processor."""
    return _glm("Glm46V")


def glm4v() -> tuple[Any, Any]:
    """Returns a small GLM-4.1V and its processor."""
    return _glm("Glm4v")


def mistral3() -> tuple[Any, Any]:
    """Returns Mistral behind a Pixtral, whose rows of an image end with a token of their own."""
    special = ("<s>", "</s>", "<pad>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]")
    tokenizer = build_tokenizer(special, eos="</s>", pad="<pad>", bos="<s>")
    config = _transformers.Mistral3Config(
        text_config={"model_type": "mistral", **text_sizes(tokenizer, rope_parameters=ROPE)},
        vision_config={"model_type": "pixtral", **VISION, "image_size": 56, "head_dim": 16},
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        tie_word_embeddings=False,
    )
    processor = _transformers.PixtralProcessor(
        _transformers.PixtralImageProcessor(size={"longest_edge": 42}, patch_size=14),
        tokenizer,
        patch_size=7,
        spatial_merge_size=2,
        chat_template=chat_template("[INST]", "[/INST]", "", "[IMG]", before="{{ bos_token }}"),
    )
    return _transformers.Mistral3ForConditionalGeneration(config), processor


def kimi_k25() -> tuple[Any, Any]:
    """Returns DeepSeek-V3 behind a MoonViT: experts, and keys and values in one latent."""
    video = "<|kimi_k25_video_placeholder|>"
    media = ("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>", video)
    tokenizer = chatml_tokenizer(*media)
    begin, _, pad, end, clip = tokenizer.convert_tokens_to_ids(list(media))
    sizes = text_sizes(tokenizer, rope_parameters=ROPE) | {
        "num_key_value_heads": 4,
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "first_k_dense_replace": 1,
        "num_mtp_layers": 0,
    }
    del sizes["head_dim"]
    vision = {"pos_emb_height": 4, "pos_emb_width": 4, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = _transformers.Kimi_K25Config(
        text_config={"model_type": "deepseek_v3", **sizes},
        vision_config={**vision, "patch_size": 14, "hidden_size": 32, "intermediate_size": 64},
        projection_hidden_size=32,
        image_token_id=pad,
        video_token_id=clip,
        vision_start_token_id=begin,
        vision_end_token_id=end,
        tie_word_embeddings=False,
    )
    grid = {"max_patches": 16, "patch_size": 14, "merge_size": 2}
    image = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
    processor = _transformers.Kimi_K25Processor(
        _transformers.Kimi_K25ImageProcessor(**grid),
        tokenizer,
        _transformers.Kimi_K25VideoProcessor(**grid),
        chat_template=chat_template("<|im_start|>ROLE\n", "<|im_end|>\n", "<|im_start|>assistant\n", image),
    )
    return _transformers.Kimi_K25ForConditionalGeneration(config), processor


def lfm2_vl() -> tuple[Any, Any]:
    """Returns LFM2, one layer of which is a convolution with a state in the place of a cache."""
    places = tuple(f"<|img_row_{row}_col_{column}|>" for row in range(1, 4) for column in range(1, 4))
    media = ("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", *places)
    tokenizer = chatml_tokenizer(*media, bos="<|im_start|>")
    text = text_sizes(
        tokenizer, rope_parameters=ROPE, layer_types=["conv", "full_attention"], tie_word_embeddings=False
    )
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = _transformers.Lfm2VlConfig(
        text_config={"model_type": "lfm2", **text},
        vision_config={
            "model_type": "siglip2_vision_model",
            **vision,
            "num_patches": 16,
            "patch_size": 7,
            "vision_use_head": False,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        projector_hidden_size=32,
        downsample_factor=2,
        tie_word_embeddings=False,
    )
    tokens = {"min_image_tokens": 2, "max_image_tokens": 6, "min_tiles": 2, "max_tiles": 4, "max_num_patches": 64}
    images = _transformers.Lfm2VlImageProcessor(encoder_patch_size=7, tile_size=SIDE, downsample_factor=2, **tokens)
    processor = _transformers.Lfm2VlProcessor(images, tokenizer, chat_template=chatml_template("<image>\n"))
    return _transformers.Lfm2VlForConditionalGeneration(config), processor


def minicpmv4_7() -> tuple[Any, Any]:
    """Returns Qwen3.5 behind a SigLIP; its positions depend on more than those of other families."""
    named = {
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "image_start_token": "<image>",
        "image_end_token": "</image>",
        "slice_start_token": "<slice>",
        "slice_end_token": "</slice>",
        "image_id_start_token": "<image_id>",
        "image_id_end_token": "</image_id>",
    }
    tokenizer = chatml_tokenizer(*named.values(), named=named)
    config = _transformers.MiniCPMV4_7Config(
        text_config={"model_type": "qwen3_5_text", **text_sizes(tokenizer, rope_parameters=HALF) | LINEAR},
        vision_config={**VISION, "image_size": 56},
        insert_layer_id=0,
        image_size=56,
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
        image_start_id=tokenizer.image_start_token_id,
        image_end_id=tokenizer.image_end_token_id,
        slice_start_id=tokenizer.slice_start_token_id,
        slice_end_id=tokenizer.slice_end_token_id,
        newline_id=tokenizer("\n")["input_ids"][0],
    )
    images = {"scale_resolution": SIDE, "patch_size": 7, "max_slice_nums": 4}
    processor = _transformers.MiniCPMV4_7Processor(
        _transformers.MiniCPMV4_6ImageProcessor(**images),
        _transformers.MiniCPMV4_6VideoProcessor(**images),
        tokenizer,
        chat_template=chatml_template("<|image_pad|>\n"),
    )
    return _transformers.MiniCPMV4_7ForConditionalGeneration(config), processor
