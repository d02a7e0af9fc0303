"""The sizes of the real models as their published configs have them, and small ones of the same build."""

from typing import Any

# Stable Diffusion 3.5 Medium (transformer/config.json of the checkpoint): 2.243 B parameters.
SD35 = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "num_layers": 24,
    "num_attention_heads": 24,
    "attention_head_dim": 64,
    "caption_projection_dim": 1536,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 384,
    "dual_attention_layers": tuple(range(13)),
    "qk_norm": "rms_norm",
}
SD35_TINY = SD35 | {
    "num_layers": 2,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "caption_projection_dim": 32,
    "joint_attention_dim": 48,
    "pooled_projection_dim": 40,
    "pos_embed_max_size": 32,
    "sample_size": 8,
    "dual_attention_layers": (0,),
}
# Stable Diffusion 1.5 (unet/config.json): 0.860 B parameters; and XL: 2.567 B.
SD15 = {
    "sample_size": 64,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
    "up_block_types": ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
    "block_out_channels": (320, 640, 1280, 1280),
    "layers_per_block": 2,
    "attention_head_dim": 8,
    "cross_attention_dim": 768,
}
SDXL = {
    "sample_size": 128,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (320, 640, 1280),
    "layers_per_block": 2,
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "transformer_layers_per_block": (1, 2, 10),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
UNET_TINY = {
    "sample_size": 8,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "cross_attention_dim": 16,
}
SD15_TINY = SD15 | UNET_TINY | {"attention_head_dim": 2}
SDXL_TINY = (
    SDXL
    | UNET_TINY
    | {
        "attention_head_dim": (1, 2),
        "transformer_layers_per_block": (1, 2),
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + 24,
    }
)
# The autoencoders of these checkpoints: one latent pixel is 8 x 8 pixels.
VAE = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "norm_num_groups": 32,
    "sample_size": 512,
}
VAE_TINY = VAE | {"block_out_channels": (8, 8, 16, 16), "layers_per_block": 1, "norm_num_groups": 4}
SD3_LATENTS = {
    "latent_channels": 16,
    "scaling_factor": 1.5305,
    "shift_factor": 0.0609,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
# The vision tower and text encoder of CLIP ViT-L/14 (CLIP score) and ViT-H/14 (HPSv2, PickScore).
CLIP: dict[str, dict[str, Any]] = {
    "clip_l": {
        "text_config": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
                        "num_hidden_layers": 12},
        "vision_config": {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
                          "num_hidden_layers": 24, "patch_size": 14},
        "projection_dim": 768,
    },
    "clip_h": {
        "text_config": {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
                        "num_hidden_layers": 24, "hidden_act": "gelu"},
        "vision_config": {"hidden_size": 1280, "intermediate_size": 5120, "num_attention_heads": 16,
                          "num_hidden_layers": 32, "patch_size": 14, "hidden_act": "gelu"},
        "projection_dim": 1024,
    },
}  # fmt: skip
CLIP_TINY: dict[str, dict[str, Any]] = {
    name: {
        "text_config": {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1,
                        "vocab_size": 200, "eos_token_id": 199},
        "vision_config": {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1,
                          "image_size": 32, "patch_size": 16},
        "projection_dim": 16,
    }
    for name in CLIP
}  # fmt: skip
# Qwen2.5-VL-7B (config.json of the checkpoint): 8.292 B parameters, 0.677 B of them the tower's.
QWEN25_7B: dict[str, Any] = {
    "text_config": {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128000,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    },
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
    },
    "tie_word_embeddings": False,
}
QWEN25_TINY: dict[str, Any] = {
    "text_config": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2**15,
        "initializer_range": 0.2,  # so that answers depend on what is read
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]},
    },
    "vision_config": {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 14,
        "window_size": 56,
        "fullatt_block_indexes": [1],
        "tokens_per_second": 2,
    },
    "tie_word_embeddings": False,
}
# Qwen2-VL-2B: 2.209 B parameters, 0.665 B of them the tower's; its head is the embedding.
QWEN2_2B: dict[str, Any] = {
    "text_config": {
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    },
    "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "num_heads": 16, "mlp_ratio": 4,
                      "patch_size": 14},
    "tie_word_embeddings": True,
}  # fmt: skip
QWEN2_TINY: dict[str, Any] = {
    "text_config": QWEN25_TINY["text_config"],
    "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14},
    "tie_word_embeddings": True,
}
