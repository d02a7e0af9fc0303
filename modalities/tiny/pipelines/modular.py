"""Tiny modular pipelines: blocks that hand a state on, and parts that are put into them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import diffusers
from torch import nn

from .family import PipelineFamily
from .images import flux2_klein_parts, flux_parts, qwen_image21_parts, qwen_image_parts, z_image_parts
from .parts import SIZE, deep_qwen3_vl, euler, flux2_vae, qwen_vl
from .videos import ltx2_parts

_diffusers: Any = diffusers  # its type information is that of its placeholders for a missing torch


def assemble_modular(name: str, **parts: Any) -> Any:
    """Returns the modular pipeline of that class of diffusers with these parts, in eval mode and frozen."""
    for part in parts.values():
        if isinstance(part, nn.Module):
            part.eval().requires_grad_(False)
    pipeline = getattr(_diffusers, name)()
    pipeline.update_components(**parts)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def modular_flux() -> Any:
    """Returns a modular FLUX.1 pipeline (model card black-forest-labs/FLUX.1-dev)."""
    return assemble_modular("FluxModularPipeline", **flux_parts())


def modular_flux2_klein() -> Any:
    """Returns a modular FLUX.2 [klein] pipeline (model card black-forest-labs/FLUX.2-klein-4B), guided by no guider."""
    return assemble_modular("Flux2KleinModularPipeline", **flux2_klein_parts())


def modular_qwen_image() -> Any:
    """Returns a modular Qwen-Image pipeline (Wu et al. 2025, arXiv 2508.02324)."""
    return assemble_modular("QwenImageModularPipeline", **qwen_image_parts())


def modular_qwen_image21() -> Any:
    """Returns a modular Qwen-Image 2.1 pipeline (model card Qwen/Qwen-Image-2.1)."""
    return assemble_modular("QwenImage21ModularPipeline", **qwen_image21_parts())


def modular_z_image() -> Any:
    """Returns a modular Z-Image pipeline (model card Tongyi-MAI/Z-Image-Turbo)."""
    return assemble_modular("ZImageModularPipeline", **z_image_parts())


def flux3() -> Any:
    """Returns a FLUX.3 pipeline (diffusers' `Flux3ModularPipeline`) without the block that rewrites prompts."""
    encoder, _, processor = qwen_vl("3")
    transformer = _diffusers.Flux3Transformer2DModel(
        in_channels=16, cond_in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=64, timestep_channels=16, axes_dims_rope=(4, 4, 4, 4))  # fmt: skip
    pipeline = assemble_modular(
        "Flux3ModularPipeline", text_encoder=encoder, tokenizer=processor, vae=flux2_vae(), transformer=transformer,
        scheduler=euler(6.93))  # fmt: skip
    pipeline._blocks.sub_blocks.pop("prompt_upsampler")
    return pipeline


def ltx25() -> Any:
    """Returns an LTX-2.5 pipeline (model card Lightricks/LTX-2.5-Diffusers): a diffusion model decodes the video."""
    decoder = _diffusers.LTX2VideoDiffusionDecoderModel(
        latent_channels=4, patch_size=2, decoder_head_dim=8, decoder_stage_channels=(16, 16), decoder_t_emb_dim=16,
        decoder_stage_depths=(1, 1), decoder_stage_kernels=((3, 3, 3),), decoder_upsample_strides=((2, 1, 1),),
        decoder_upsample_channel_reductions=(1,), decoder_stage5_kernel=(3, 3, 3), spatial_compression_ratio=2,
        temporal_compression_ratio=2)  # fmt: skip
    return assemble_modular("LTX25ModularPipeline", diffusion_decoder=decoder, **ltx2_parts())


def minimax_h3() -> Any:
    """Returns a MiniMax-H3 pipeline of video and sound (model card MiniMaxAI/MiniMax-H3), distilled without guidance.

    The pipeline reads the 50th layer of its text encoder and makes 5 seconds at least, which are 124 frames.
    """
    _, reader, processor = qwen_vl("3")
    transformer = _diffusers.MiniMaxH3Transformer3DModel(
        num_attention_heads=2, attention_head_dim=16, hidden_size=32, num_layers=2, num_refiner_layers=1, ffn_dim=32,
        in_channels=4, audio_in_channels=4, text_dim=32, freq_dim=16, time_embed_hidden_dim=32, time_embed_dim=16,
        rope_freq_dim=2)  # fmt: skip
    coder = _diffusers.AutoencoderKLMiniMaxH3(
        latent_channels=4, block_out_channels=(8,) * 6, layers_per_block=1, norm_num_groups=2, decoder_num_layers=1,
        decoder_num_attention_heads=2, decoder_attention_head_dim=16, latents_mean=(0.1, -0.2, 0.3, 0.0),
        latents_std=(1.0, 1.5, 0.8, 1.2))  # fmt: skip
    sound = _diffusers.AutoencoderKLMiniMaxH3Audio(
        encoder_dim=8, encoder_rates=(2, 2), latent_dim=16, latent_channels=4, num_attention_heads=2, decoder_dim=16,
        decoder_rates=(2, 2), decoder_kernel_sizes=(4, 4), resblock_kernel_sizes=(3,),
        resblock_dilation_sizes=((1, 3),), sampling_rate=160, latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.0, 1.5, 0.8, 1.2])  # fmt: skip
    return assemble_modular(
        "MiniMaxH3ModularPipeline", transformer=transformer, vae=coder, audio_vae=sound, processor=processor,
        text_encoder=deep_qwen3_vl(51), tokenizer=reader, scheduler=_diffusers.MiniMaxH3Scheduler(shift=12.0),
        audio_scheduler=_diffusers.MiniMaxH3Scheduler(shift=3.0))  # fmt: skip


MODULAR: Mapping[str, PipelineFamily] = MappingProxyType(
    {
        "modular_flux": PipelineFamily(  # guidance is an input of the network and cannot be turned off
            modular_flux,
            {**SIZE, "max_sequence_length": 48},
            {"guidance_scale": 3.5},
            {"guidance_scale": 1.5},
            modular=True,
        ),
        "modular_flux2_klein": PipelineFamily(  # distilled: its blocks have no guidance
            modular_flux2_klein,
            {**SIZE, "max_sequence_length": 96, "text_encoder_out_layers": (1,)},
            modular=True,
        ),
        "modular_qwen_image": PipelineFamily(
            modular_qwen_image,
            {**SIZE, "max_sequence_length": 700},
            guided={"negative_prompt": "ugly"},
            modular=True,
            guider="guider",
        ),
        "modular_z_image": PipelineFamily(
            modular_z_image,
            {**SIZE, "max_sequence_length": 64},
            guided={"negative_prompt": "ugly"},
            modular=True,
            guider="guider",
        ),
        "modular_qwen_image21": PipelineFamily(
            modular_qwen_image21,
            {**SIZE, "use_kv_cache": False},
            guided={"negative_prompt": "ugly"},
            modular=True,
            guider="guider",
        ),
        "flux3_edit": PipelineFamily(
            flux3,
            {**SIZE, "max_sequence_length": 512, "text_encoder_out_layers": (1, 2)},
            guided={"negative_prompt": "ugly"},
            condition_arguments=("image",),
            condition_side=64,
            modular=True,
            guider="guider",
            removed_blocks=("prompt_upsampler",),
        ),
        "flux3": PipelineFamily(
            flux3,
            {**SIZE, "max_sequence_length": 64, "text_encoder_out_layers": (1, 2)},
            guided={"negative_prompt": "ugly"},
            modular=True,
            guider="guider",
            removed_blocks=("prompt_upsampler",),
        ),
        "minimax_h3": PipelineFamily(  # distilled: its blocks have no guidance
            minimax_h3, {**SIZE, "num_frames": 124}, makes="video", modular=True
        ),
        "ltx25": PipelineFamily(
            ltx25,
            {**SIZE, "num_frames": 5, "frame_rate": 25.0, "max_sequence_length": 64, "use_cross_timestep": False},
            guided={"negative_prompt": "ugly"},
            makes="video",
            modular=True,
            guider="guider",
            second_guider="audio_guider",
        ),
    }
)
