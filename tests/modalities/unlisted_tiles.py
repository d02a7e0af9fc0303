"""Tiny twins of families that mmrl does not list and whose images are tiles of one size, or squares."""

from typing import Any

import transformers

from mmrl.modalities.tiny.text import build_tokenizer, chat_template, text_sizes
from mmrl.modalities.tiny.tiled import _ROPE, _SIDE, _VISION, _chatml
from tests.modalities.unlisted_grids import chatml_tokenizer

_transformers: Any = transformers
_SIGLIP = {"model_type": "siglip_vision_model", **_VISION, "vision_use_head": False}
_SQUARE = {"height": _SIDE, "width": _SIDE}
_PINPOINTS = [[_SIDE, 2 * _SIDE], [2 * _SIDE, _SIDE], [2 * _SIDE, 2 * _SIDE]]


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
    """As E2B: embeddings for each layer, layers that share keys and values."""
    return _gemma4(hidden_size_per_layer_input=8, num_kv_shared_layers=2)


def gemma4_ahead() -> tuple[Any, Any]:
    """As 31B: tokens of an image see each other, keys are values on full layers."""
    return _gemma4(use_bidirectional_attention="vision", attention_k_eq_v=True, num_global_key_value_heads=1)


def paligemma() -> tuple[Any, Any]:
    """All tokens of a prompt see each other."""
    tokenizer = build_tokenizer(("<pad>", "<eos>", "<bos>"), eos="<eos>", pad="<pad>", bos="<bos>")
    images = _transformers.SiglipImageProcessor(size=_SQUARE)
    images.image_seq_length = 16
    template = chat_template("", "", "", "<image>")  # the checkpoints have none
    processor = _transformers.PaliGemmaProcessor(images, tokenizer, chat_template=template)  # adds tokens
    config = _transformers.PaliGemmaConfig(
        text_config={"model_type": "gemma", **text_sizes(tokenizer, rope_parameters=_ROPE)},
        vision_config=_SIGLIP,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        projection_dim=32,
        hidden_size=32,
        vocab_size=(len(tokenizer) + 15) // 16 * 16,
    )
    return _transformers.PaliGemmaForConditionalGeneration(config), processor


def aya_vision() -> tuple[Any, Any]:
    """Its language model scales logits, and the class of transformers around it does not."""
    tiles = ("TILE_GLOBAL", "TILE", "TILE_1", "TILE_2", "TILE_3")
    media = ("<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", *tiles)
    special = ("<PAD>", "<BOS>", "<|END|>", "<|START|>", *media)
    tokenizer = build_tokenizer(special, eos="<|END|>", pad="<PAD>", bos="<BOS>")
    layers = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], "logit_scale": 0.25}
    config = _transformers.AyaVisionConfig(
        text_config={"model_type": "cohere2", **text_sizes(tokenizer, rope_parameters=_ROPE), **layers},
        vision_config=_SIGLIP,
        image_token_index=tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>"),
        tie_word_embeddings=False,
    )
    images = _transformers.GotOcr2ImageProcessor(size=_SQUARE, crop_to_patches=True, min_patches=1, max_patches=3)
    processor = _transformers.AyaVisionProcessor(
        images,
        tokenizer,
        patch_size=7,
        img_size=_SIDE,
        downsample_factor=2,
        chat_template=chat_template(
            "<|START|>ROLE:", "<|END|>", "<|START|>assistant:", "<image>", before="{{ bos_token }}"
        ),
    )
    return _transformers.AyaVisionForConditionalGeneration(config), processor


def _next_images() -> Any:
    return _transformers.LlavaNextImageProcessor(
        size={"shortest_edge": _SIDE}, crop_size=_SQUARE, image_grid_pinpoints=_PINPOINTS
    )


def llava_next() -> tuple[Any, Any]:
    tokenizer = build_tokenizer(("<unk>", "<s>", "</s>", "<image>"), eos="</s>", pad="<unk>", bos="<s>")
    config = _transformers.LlavaNextConfig(
        text_config={"model_type": "llama", **text_sizes(tokenizer, rope_parameters=_ROPE)},
        vision_config={"model_type": "clip_vision_model", **_VISION, "projection_dim": 32},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=_PINPOINTS,
    )
    processor = _transformers.LlavaNextProcessor(
        _next_images(),
        tokenizer,
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template("ROLE: ", "\n", "assistant: ", "<image>\n", before="{{ bos_token }}"),
    )
    return _transformers.LlavaNextForConditionalGeneration(config), processor


def granite4_vision() -> tuple[Any, Any]:
    """Makes no cache by itself."""
    special = ("<|end_of_text|>", "<|pad|>", "<|start_of_role|>", "<|end_of_role|>", "<image>")
    tokenizer = build_tokenizer(special, eos="<|end_of_text|>", pad="<|pad|>")
    scales = {
        "embedding_multiplier": 2.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.3,
    }
    former = {"num_hidden_layers": 1, "intermediate_size": 64, "max_position_embeddings": 64}
    config = _transformers.Granite4VisionConfig(
        text_config=text_sizes(tokenizer, rope_parameters=_ROPE) | {"num_hidden_layers": 6, **scales},
        vision_config={**_SIGLIP, "hidden_size": 64},
        qformer_config={
            "model_type": "blip_2_qformer",
            **former,
            "cross_attention_frequency": 1,
            "use_qformer_text_input": False,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=_PINPOINTS,
        vision_feature_select_strategy="full",
        downsample_rate="1/2",
        deepstack_layer_map=[(-2, 0), (-1, 1)],
        spatial_target_layers=[2, 3, 4, 5],
        use_image_newline_parameter=True,
    )
    role = "<|start_of_role|>ROLE<|end_of_role|>"
    processor = _transformers.Granite4VisionProcessor(
        _next_images(),
        tokenizer,
        patch_size=7,
        vision_feature_select_strategy="full",
        downsample_rate="1/2",
        chat_template=chat_template(role, "<|end_of_text|>\n", role.replace("ROLE", "assistant"), "<image>\n"),
    )
    return _transformers.Granite4VisionForConditionalGeneration(config), processor


def ovis2() -> tuple[Any, Any]:
    """Has tokens around and between tiles that are embedded otherwise where an image stands in the prompt."""
    media = ("<image>", "<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
    tokenizer = chatml_tokenizer(*media)
    ids = tokenizer.convert_tokens_to_ids(list(media))
    sizes = text_sizes(tokenizer, rope_parameters=_ROPE)
    config = _transformers.Ovis2Config(
        text_config={"model_type": "qwen2", **sizes},
        vision_config={**_VISION, "vocab_size": 64, "hidden_stride": 2, "num_visual_indicator_tokens": 5},
        image_token_id=ids[1],
        visual_indicator_token_ids=ids[2:],
        vocab_size=sizes["vocab_size"],
        hidden_size=32,
        tie_word_embeddings=False,
    )
    images = _transformers.Ovis2ImageProcessor(size=_SQUARE, crop_to_patches=True, max_patches=3)
    processor = _transformers.Ovis2Processor(images, tokenizer, image_seq_length=4, chat_template=_chatml("<image>\n"))
    return _transformers.Ovis2ForConditionalGeneration(config), processor


def llama4() -> tuple[Any, Any]:
    """Has no network apart from its head."""
    tiles = ("<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>")
    turns = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot|>", "<|header_start|>", "<|header_end|>", "<|pad|>")
    special = (*turns, "<|image|>", "<|image_start|>", "<|image_end|>", *tiles)
    tokenizer = build_tokenizer(special, eos="<|eot|>", pad="<|pad|>", bos="<|begin_of_text|>")
    experts = {"intermediate_size": 32, "intermediate_size_mlp": 64, "num_local_experts": 4, "num_experts_per_tok": 1}
    layers = {"attention_chunk_size": 64, "no_rope_layers": [1, 0], "floor_scale": 8}
    projector = {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
    config = _transformers.Llama4Config(
        text_config=text_sizes(tokenizer, rope_parameters=_ROPE) | experts | layers,
        vision_config={**_VISION, "intermediate_size": 128, **projector},
        boi_token_index=tokenizer.convert_tokens_to_ids("<|image_start|>"),
        eoi_token_index=tokenizer.convert_tokens_to_ids("<|image_end|>"),
        image_token_index=tokenizer.convert_tokens_to_ids("<|patch|>"),
    )
    role = "<|header_start|>ROLE<|header_end|>\n\n"
    processor = _transformers.Llama4Processor(
        _transformers.Llama4ImageProcessor(size=_SQUARE, max_patches=3),
        tokenizer,
        patch_size=7,
        pixel_shuffle_ratio=0.5,
        chat_template=chat_template(
            role, "<|eot|>", role.replace("ROLE", "assistant"), "<|image|>", before="{{ bos_token }}"
        ),
    )
    return _transformers.Llama4ForConditionalGeneration(config), processor


def janus() -> tuple[Any, Any]:
    """Has a generator of images beside what answers."""
    named = {"boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_placeholder>"}
    special = ("<bos>", "<eos>", "<pad>", *named.values())
    tokenizer = build_tokenizer(special, eos="<eos>", pad="<pad>", bos="<bos>", named=named)
    tower = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2.0}
    codes = {
        "embed_dim": 8,
        "num_embeddings": 32,
        "latent_channels": 8,
        "base_channels": 32,
        "channel_multiplier": [1, 1],
    }
    config = _transformers.JanusConfig(
        text_config={"model_type": "llama", **text_sizes(tokenizer, rope_parameters=_ROPE)},
        vision_config={**tower, "image_size": _SIDE, "patch_size": 7, "projection_dim": 32, "num_image_tokens": 16},
        vq_config={**codes, "num_res_blocks": 1, "projection_dim": 32, "image_token_embed_dim": 32},
        image_token_id=tokenizer.image_token_id,
        tie_word_embeddings=False,
    )
    template = chat_template("<|ROLE|>: ", "\n", "<|assistant|>:", "<image_placeholder>\n", before="{{ bos_token }}")
    processor = _transformers.JanusProcessor(
        _transformers.JanusImageProcessor(size=_SQUARE), tokenizer, num_image_tokens=16, chat_template=template
    )
    return _transformers.JanusForConditionalGeneration(config), processor


def molmo2() -> tuple[Any, Any]:
    """Tokens of an image see each other, and what is pooled into them is counted within the prompt."""
    frames = ("<frame_start>", "<frame_end>", "<|image|>", "<|video|>")
    patches = ("<im_start>", "<low_res_im_start>", "<im_end>", "<im_patch>", "<im_col>", "<im_low>")
    tokenizer = chatml_tokenizer(*patches, *frames)
    number = tokenizer.convert_tokens_to_ids
    heads = {"num_key_value_heads": 2, "head_dim": 16}
    config = _transformers.Molmo2Config(
        text_config=text_sizes(tokenizer, rope_parameters=_ROPE) | {"additional_vocab_size": 16},
        vision_config={**_VISION, **heads, "image_size": [_SIDE, _SIDE]},
        adapter_config={
            "vision_feature_layer": [1, 0],
            "hidden_size": 32,
            "num_attention_heads": 2,
            **heads,
            "intermediate_size": 64,
            "text_hidden_size": 32,
        },
        image_start_token_id=number("<im_start>"),
        low_res_image_start_token_id=number("<low_res_im_start>"),
        image_end_token_id=number("<im_end>"),
        image_patch_id=number("<im_patch>"),
        frame_start_token_id=number("<frame_start>"),
        frame_end_token_id=number("<frame_end>"),
    )
    images = {"size": _SQUARE, "patch_size": 7, "pooling_size": [2, 2]}
    processor = _transformers.Molmo2Processor(
        _transformers.Molmo2ImageProcessor(**images, max_crops=3, overlap_margins=[1, 1]),
        _transformers.Molmo2VideoProcessor(**images),
        tokenizer,
        chat_template=_chatml("<|image|>"),
    )
    return _transformers.Molmo2ForConditionalGeneration(config), processor
