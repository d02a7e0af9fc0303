"""Twins of the families whose images are tiles of one size: InternVL, Idefics3, Ovis2, Llama 4, Molmo 2 and others."""

from typing import Any

import transformers

from .text import ROPE, build_tokenizer, chat_template, chatml_template, chatml_tokenizer, text_sizes

_transformers: Any = transformers
SIDE, PATCH = 28, 7  # of a tile, in pixels: 4 x 4 patches
VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
}
SIGLIP = {"model_type": "siglip_vision_model", **VISION, "vision_use_head": False}
SQUARE = {"height": SIDE, "width": SIDE}


def internvl() -> tuple[Any, Any]:
    """Returns Qwen2 behind an InternViT; an image is one tile or several with a small copy of the whole."""
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
             "video_token": "<video>"}  # fmt: skip
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *named.values())
    tokenizer = build_tokenizer(special, eos="<|im_end|>", pad="<|endoftext|>", named=named)
    config = _transformers.InternVLConfig(
        text_config=_transformers.Qwen2Config(**text_sizes(tokenizer, rope_parameters=ROPE)).to_dict(),
        vision_config={**VISION, "image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH]},
        image_token_id=tokenizer.context_image_token_id,
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    images = _transformers.GotOcr2ImageProcessor(
        size={"height": SIDE, "width": SIDE}, crop_to_patches=True, min_patches=1, max_patches=3
    )
    processor = _transformers.InternVLProcessor(
        images,
        tokenizer,
        _transformers.InternVLVideoProcessor(size={"height": SIDE, "width": SIDE}),
        image_seq_length=4,
        chat_template=chatml_template("<IMG_CONTEXT>\n"),
    )
    return _transformers.InternVLForConditionalGeneration(config), processor


def _idefics3(kind: str, *videos: Any) -> tuple[Any, Any]:
    places = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
    special = ("<|endoftext|>", "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>",
               "<global-img>", *places)  # fmt: skip
    tokenizer = build_tokenizer(special, eos="<end_of_utterance>", pad="<|endoftext|>")
    config = getattr(_transformers, f"{kind}Config")(
        text_config=_transformers.LlamaConfig(**text_sizes(tokenizer, rope_parameters=ROPE)).to_dict(),
        vision_config=VISION,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        tie_word_embeddings=False,
    )
    images = getattr(_transformers, f"{kind}ImageProcessor")(
        size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE}
    )
    template = chat_template("<|im_start|>ROLE:", "<end_of_utterance>\n", "Assistant:", "<image>")
    processor = getattr(_transformers, f"{kind}Processor")(
        images, tokenizer, *videos, image_seq_len=4, chat_template=template
    )
    return getattr(_transformers, f"{kind}ForConditionalGeneration")(config), processor


def idefics3() -> tuple[Any, Any]:
    """Returns Llama behind a SigLIP of tiles with rows and columns in words."""
    return _idefics3("Idefics3")


def smolvlm() -> tuple[Any, Any]:
    """Returns the same with clips; its processor needs the package num2words."""
    frame = {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
    return _idefics3("SmolVLM", _transformers.SmolVLMVideoProcessor(**frame))


def aya_vision() -> tuple[Any, Any]:
    """Returns Cohere 2 behind a SigLIP: its language model scales logits, and the class around it does not."""
    tiles = ("TILE_GLOBAL", "TILE", "TILE_1", "TILE_2", "TILE_3")
    media = ("<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", *tiles)
    special = ("<PAD>", "<BOS>", "<|END|>", "<|START|>", *media)
    tokenizer = build_tokenizer(special, eos="<|END|>", pad="<PAD>", bos="<BOS>")
    layers = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], "logit_scale": 0.25}
    config = _transformers.AyaVisionConfig(
        text_config={"model_type": "cohere2", **text_sizes(tokenizer, rope_parameters=ROPE), **layers},
        vision_config=SIGLIP,
        image_token_index=tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>"),
        tie_word_embeddings=False,
    )
    images = _transformers.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, min_patches=1, max_patches=3)
    processor = _transformers.AyaVisionProcessor(
        images,
        tokenizer,
        patch_size=7,
        img_size=SIDE,
        downsample_factor=2,
        chat_template=chat_template(
            "<|START|>ROLE:", "<|END|>", "<|START|>assistant:", "<image>", before="{{ bos_token }}"
        ),
    )
    return _transformers.AyaVisionForConditionalGeneration(config), processor


def ovis2() -> tuple[Any, Any]:
    """Returns Qwen2 with tokens around tiles that are embedded otherwise where an image stands in the prompt."""
    media = ("<image>", "<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
    tokenizer = chatml_tokenizer(*media)
    ids = tokenizer.convert_tokens_to_ids(list(media))
    sizes = text_sizes(tokenizer, rope_parameters=ROPE)
    config = _transformers.Ovis2Config(
        text_config={"model_type": "qwen2", **sizes},
        vision_config={**VISION, "vocab_size": 64, "hidden_stride": 2, "num_visual_indicator_tokens": 5},
        image_token_id=ids[1],
        visual_indicator_token_ids=ids[2:],
        vocab_size=sizes["vocab_size"],
        hidden_size=32,
        tie_word_embeddings=False,
    )
    images = _transformers.Ovis2ImageProcessor(size=SQUARE, crop_to_patches=True, max_patches=3)
    processor = _transformers.Ovis2Processor(
        images, tokenizer, image_seq_length=4, chat_template=chatml_template("<image>\n")
    )
    return _transformers.Ovis2ForConditionalGeneration(config), processor


def llama4() -> tuple[Any, Any]:
    """Returns Llama 4: experts, and no network apart from its head."""
    tiles = ("<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>")
    turns = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot|>", "<|header_start|>", "<|header_end|>", "<|pad|>")
    special = (*turns, "<|image|>", "<|image_start|>", "<|image_end|>", *tiles)
    tokenizer = build_tokenizer(special, eos="<|eot|>", pad="<|pad|>", bos="<|begin_of_text|>")
    experts = {"intermediate_size": 32, "intermediate_size_mlp": 64, "num_local_experts": 4, "num_experts_per_tok": 1}
    layers = {"attention_chunk_size": 64, "no_rope_layers": [1, 0], "floor_scale": 8}
    projector = {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
    config = _transformers.Llama4Config(
        text_config=text_sizes(tokenizer, rope_parameters=ROPE) | experts | layers,
        vision_config={**VISION, "intermediate_size": 128, **projector},
        boi_token_index=tokenizer.convert_tokens_to_ids("<|image_start|>"),
        eoi_token_index=tokenizer.convert_tokens_to_ids("<|image_end|>"),
        image_token_index=tokenizer.convert_tokens_to_ids("<|patch|>"),
    )
    role = "<|header_start|>ROLE<|header_end|>\n\n"
    processor = _transformers.Llama4Processor(
        _transformers.Llama4ImageProcessor(size=SQUARE, max_patches=3),
        tokenizer,
        patch_size=7,
        pixel_shuffle_ratio=0.5,
        chat_template=chat_template(
            role, "<|eot|>", role.replace("ROLE", "assistant"), "<|image|>", before="{{ bos_token }}"
        ),
    )
    return _transformers.Llama4ForConditionalGeneration(config), processor


def janus() -> tuple[Any, Any]:
    """Returns Llama behind a SigLIP, with a generator of images beside it."""
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
        text_config={"model_type": "llama", **text_sizes(tokenizer, rope_parameters=ROPE)},
        vision_config={**tower, "image_size": SIDE, "patch_size": 7, "projection_dim": 32, "num_image_tokens": 16},
        vq_config={**codes, "num_res_blocks": 1, "projection_dim": 32, "image_token_embed_dim": 32},
        image_token_id=tokenizer.image_token_id,
        tie_word_embeddings=False,
    )
    template = chat_template("<|ROLE|>: ", "\n", "<|assistant|>:", "<image_placeholder>\n", before="{{ bos_token }}")
    processor = _transformers.JanusProcessor(
        _transformers.JanusImageProcessor(size=SQUARE), tokenizer, num_image_tokens=16, chat_template=template
    )
    return _transformers.JanusForConditionalGeneration(config), processor


def molmo2() -> tuple[Any, Any]:
    """Returns Molmo 2: tokens of an image see each other, and pool patches that are counted within the prompt."""
    frames = ("<frame_start>", "<frame_end>", "<|image|>", "<|video|>")
    patches = ("<im_start>", "<low_res_im_start>", "<im_end>", "<im_patch>", "<im_col>", "<im_low>")
    tokenizer = chatml_tokenizer(*patches, *frames)
    number = tokenizer.convert_tokens_to_ids
    heads = {"num_key_value_heads": 2, "head_dim": 16}
    config = _transformers.Molmo2Config(
        text_config=text_sizes(tokenizer, rope_parameters=ROPE) | {"additional_vocab_size": 16},
        vision_config={**VISION, **heads, "image_size": [SIDE, SIDE]},
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
    images = {"size": SQUARE, "patch_size": 7, "pooling_size": [2, 2]}
    processor = _transformers.Molmo2Processor(
        _transformers.Molmo2ImageProcessor(**images, max_crops=3, overlap_margins=[1, 1]),
        _transformers.Molmo2VideoProcessor(**images),
        tokenizer,
        chat_template=chatml_template("<|image|>"),
    )
    return _transformers.Molmo2ForConditionalGeneration(config), processor
