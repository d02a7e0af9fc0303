"""Twins of the families whose tiles keep an image's shape: LLaVA-OneVision, LLaVA-NeXT, Granite 4 Vision."""

from typing import Any

import transformers

from .text import ROPE, build_tokenizer, chat_template, chatml_template, text_sizes
from .tiled import SIDE, SIGLIP, SQUARE, VISION

_transformers: Any = transformers
PINPOINTS = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]


def llava_onevision() -> tuple[Any, Any]:
    """Returns Qwen2 behind a SigLIP; a single image is cut into tiles that keep its shape, several are a tile each."""
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>")
    tokenizer = build_tokenizer(special, eos="<|im_end|>", pad="<|endoftext|>")
    pinpoints = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]
    config = _transformers.LlavaOnevisionConfig(
        text_config=_transformers.Qwen2Config(**text_sizes(tokenizer, rope_parameters=ROPE)).to_dict(),
        vision_config={"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=pinpoints,
        tie_word_embeddings=False,
    )
    images = _transformers.LlavaOnevisionImageProcessor(
        size={"height": SIDE, "width": SIDE}, image_grid_pinpoints=pinpoints
    )
    processor = _transformers.LlavaOnevisionProcessor(
        images,
        tokenizer,
        _transformers.LlavaOnevisionVideoProcessor(size={"height": SIDE, "width": SIDE}),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        chat_template=chatml_template("<image>\n"),
    )
    return _transformers.LlavaOnevisionForConditionalGeneration(config), processor


def _next_images() -> Any:
    return _transformers.LlavaNextImageProcessor(
        size={"shortest_edge": SIDE}, crop_size=SQUARE, image_grid_pinpoints=PINPOINTS
    )


def llava_next() -> tuple[Any, Any]:
    """Returns Llama behind a CLIP; an image is cut into tiles that keep its shape, with a small copy of the whole."""
    tokenizer = build_tokenizer(("<unk>", "<s>", "</s>", "<image>"), eos="</s>", pad="<unk>", bos="<s>")
    config = _transformers.LlavaNextConfig(
        text_config={"model_type": "llama", **text_sizes(tokenizer, rope_parameters=ROPE)},
        vision_config={"model_type": "clip_vision_model", **VISION, "projection_dim": 32},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=PINPOINTS,
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
    """Returns Granite behind a SigLIP; several layers get features of images; it makes no cache by itself."""
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
        text_config=text_sizes(tokenizer, rope_parameters=ROPE) | {"num_hidden_layers": 6, **scales},
        vision_config={**SIGLIP, "hidden_size": 64},
        qformer_config={
            "model_type": "blip_2_qformer",
            **former,
            "cross_attention_frequency": 1,
            "use_qformer_text_input": False,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=PINPOINTS,
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
