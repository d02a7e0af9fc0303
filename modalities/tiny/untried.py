"""Twins of two families that were chosen before either was tried: Aria, and Llama 3.2 Vision (Mllama)."""

from typing import Any

import transformers

from .text import ROPE, build_tokenizer, chat_template, chatml_template, chatml_tokenizer, text_sizes
from .tiled import SIDE, SQUARE

_transformers: Any = transformers


def aria() -> tuple[Any, Any]:
    """Returns experts behind a SigLIP; queries read its patches, under a mask of pixels, at two fixed sizes."""
    tokenizer = chatml_tokenizer("<|img|>", named={"image_token": "<|img|>"})
    experts = {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1}
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = _transformers.AriaConfig(
        text_config=text_sizes(tokenizer, rope_parameters=ROPE) | experts,
        vision_config={"model_type": "idefics3_vision", **tower, "image_size": 980, "patch_size": 70},
        projector_patch_to_query_dict={49: 4, 196: 9},
        image_token_index=tokenizer.image_token_id,
    )
    processor = _transformers.AriaProcessor(
        _transformers.AriaImageProcessor(max_image_size=490, min_image_size=70),
        tokenizer,
        size_conversion={490: 4, 980: 9},
        chat_template=chatml_template("<|img|>"),
    )
    return _transformers.AriaForConditionalGeneration(config), processor


def mllama() -> tuple[Any, Any]:
    """Returns Llama 3.2 Vision: its text reads tiles by layers of cross-attention, under a mask of tokens and tiles."""
    turns = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
    special = (*turns, "<|pad|>", "<|python_tag|>", "<|image|>")
    tokenizer = build_tokenizer(special, eos="<|eot_id|>", pad="<|pad|>", bos="<|begin_of_text|>")
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_global_layers": 1}
    sizes = {"attention_heads": 2, "image_size": SIDE, "patch_size": 7, "vision_output_dim": 64}
    layers = {"num_hidden_layers": 3, "cross_attention_layers": [1]}
    config = _transformers.MllamaConfig(
        text_config=text_sizes(tokenizer, rope_parameters=ROPE) | layers,
        vision_config={**tower, **sizes, "intermediate_layers_indices": [0]},
        image_token_index=tokenizer.convert_tokens_to_ids("<|image|>"),
    )
    role = "<|start_header_id|>ROLE<|end_header_id|>\n\n"
    template = chat_template(
        role, "<|eot_id|>", role.replace("ROLE", "assistant"), "<|image|>", before="{{ bos_token }}"
    )
    images = _transformers.MllamaImageProcessor(size=SQUARE, max_image_tiles=4)
    processor = _transformers.MllamaProcessor(images, tokenizer, chat_template=template)
    return _transformers.MllamaForConditionalGeneration(config), processor
