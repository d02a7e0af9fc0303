"""Tiny video pipelines, from text and from a first frame."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import diffusers
import transformers
from diffusers.pipelines.ltx2 import LTX2TextConnectors
from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder

from ..gemma import gemma3
from .family import PipelineFamily
from .guardrail import OpenGuardrail
from .images import cosmos_transformer, kandinsky5_transformer
from .parts import (
    CLIP,
    GUIDANCE,
    NO_GUIDANCE,
    SIZE,
    TRUE_GUIDANCE,
    assemble,
    clip_text,
    dynamic_euler,
    euler,
    hunyuan_video_vae,
    language,
    qwen_vl,
    t5,
    tokenizer,
    wan_vae,
)

_diffusers: Any = diffusers  # its type information is that of its placeholders for a missing torch
_transformers: Any = transformers


def wan_transformer(**settings: Any) -> Any:
    """Returns the transformer of Wan over UMT5's features."""
    sizes = {"patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 16,
             "out_channels": 16, "text_dim": 32, "freq_dim": 32, "ffn_dim": 32, "num_layers": 2,
             "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 32}  # fmt: skip
    return _diffusers.WanTransformer3DModel(**{**sizes, **settings})


def wan21() -> Any:
    """Returns a Wan 2.1 text-to-video pipeline (Wan Team 2025, arXiv 2503.20314)."""
    encoder, reader = t5("UMT5")
    return assemble(
        "WanPipeline", transformer=wan_transformer(), vae=wan_vae(), scheduler=euler(), text_encoder=encoder,
        tokenizer=reader)  # fmt: skip


def wan22() -> Any:
    """Returns a Wan 2.2 pipeline of two networks, one for high noise (model card Wan-AI/Wan2.2-T2V-A14B)."""
    encoder, reader = t5("UMT5")
    return assemble(
        "WanPipeline", transformer=wan_transformer(), transformer_2=wan_transformer(), vae=wan_vae(),
        scheduler=euler(), text_encoder=encoder, tokenizer=reader, boundary_ratio=0.875)  # fmt: skip


def _wan22_5b_parts() -> dict[str, Any]:
    encoder, reader = t5("UMT5")
    coder = wan_vae(
        z_dim=48, in_channels=12, out_channels=12, is_residual=True, patch_size=2, latents_mean=[0.0] * 48,
        latents_std=[1.0] * 48, scale_factor_spatial=16, scale_factor_temporal=4)  # fmt: skip
    return {"transformer": wan_transformer(in_channels=48, out_channels=48), "vae": coder, "scheduler": euler(),
            "text_encoder": encoder, "tokenizer": reader, "expand_timesteps": True}  # fmt: skip


def wan22_5b() -> Any:
    """Returns a Wan 2.2 5B pipeline (model card Wan-AI/Wan2.2-TI2V-5B): each token has a timestep."""
    return assemble("WanPipeline", **_wan22_5b_parts())


def wan22_5b_i2v() -> Any:
    """Returns a Wan 2.2 5B pipeline from a first frame (model card Wan-AI/Wan2.2-TI2V-5B)."""
    return assemble("WanImageToVideoPipeline", image_encoder=None, image_processor=None, **_wan22_5b_parts())


def wan_i2v(**settings: Any) -> Any:
    """Returns a Wan 2.1 pipeline from a first frame (model card Wan-AI/Wan2.1-I2V-14B-480P): CLIP sees the frame.

    `settings`: of the transformer.
    """
    encoder, reader = t5("UMT5")
    vision = _transformers.CLIPVisionConfig(
        hidden_size=4, projection_dim=4, num_hidden_layers=2, num_attention_heads=2, image_size=8, intermediate_size=16,
        patch_size=1)  # fmt: skip
    return assemble(
        "WanImageToVideoPipeline", vae=wan_vae(), scheduler=euler(), text_encoder=encoder,
        transformer=wan_transformer(**{"in_channels": 36, "image_dim": 4, **settings}), tokenizer=reader,
        image_encoder=_transformers.CLIPVisionModel(vision),
        image_processor=_transformers.CLIPImageProcessor(crop_size=8, size=8))  # fmt: skip


def _ltx_parts() -> dict[str, Any]:
    encoder, reader = t5()
    transformer = _diffusers.LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, patch_size=1, patch_size_t=1, num_attention_heads=4, attention_head_dim=8,
        cross_attention_dim=32, num_layers=1, caption_channels=32)  # fmt: skip
    coder = _diffusers.AutoencoderKLLTXVideo(
        latent_channels=8, block_out_channels=(8,) * 4, decoder_block_out_channels=(8,) * 4,
        layers_per_block=(1,) * 5, decoder_layers_per_block=(1,) * 5,
        spatio_temporal_scaling=(True, True, False, False), decoder_spatio_temporal_scaling=(True, True, False, False),
        decoder_inject_noise=(False,) * 5, upsample_residual=(False,) * 4, upsample_factor=(1,) * 4,
        timestep_conditioning=False, patch_size=1, patch_size_t=1, encoder_causal=True,
        decoder_causal=False)  # fmt: skip
    return {"transformer": transformer, "vae": coder, "scheduler": dynamic_euler(), "text_encoder": encoder,
            "tokenizer": reader}  # fmt: skip


def ltx() -> Any:
    """Returns an LTX-Video text-to-video pipeline (HaCohen et al. 2024, arXiv 2501.00103)."""
    return assemble("LTXPipeline", **_ltx_parts())


def ltx_i2v() -> Any:
    """Returns an LTX-Video pipeline from a first frame (HaCohen et al. 2024, arXiv 2501.00103)."""
    return assemble("LTXImageToVideoPipeline", **_ltx_parts())


def hunyuan_video() -> Any:
    """Returns a HunyuanVideo pipeline (Kong et al. 2024, arXiv 2412.03603); its distilled guidance is an input."""
    reader, (clip, reader_2) = tokenizer(longest=256), clip_text(16)
    transformer = _diffusers.HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=10, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, patch_size=1, patch_size_t=1, guidance_embeds=True, text_embed_dim=32,
        pooled_projection_dim=16, rope_axes_dim=(2, 4, 4))  # fmt: skip
    return assemble(
        "HunyuanVideoPipeline", transformer=transformer, vae=hunyuan_video_vae(), scheduler=euler(7.0),
        text_encoder=language("Llama", reader), tokenizer=reader, text_encoder_2=clip,
        tokenizer_2=reader_2)  # fmt: skip


def _hunyuan_video15_parts(task: str) -> dict[str, Any]:
    (encoder, reader, _), (encoder_2, reader_2) = qwen_vl(), t5(reader=_transformers.ByT5Tokenizer())
    transformer = _diffusers.HunyuanVideo15Transformer3DModel(
        in_channels=9, out_channels=4, num_attention_heads=2, attention_head_dim=8, num_layers=1, num_refiner_layers=1,
        mlp_ratio=2.0, patch_size=1, patch_size_t=1, text_embed_dim=32, text_embed_2_dim=32, image_embed_dim=12,
        rope_axes_dim=(2, 2, 4), target_size=16, task_type=task)  # fmt: skip
    coder = _diffusers.AutoencoderKLHunyuanVideo15(
        latent_channels=4, block_out_channels=(16, 16), layers_per_block=1, spatial_compression_ratio=4,
        temporal_compression_ratio=2, downsample_match_channel=False, upsample_match_channel=False)  # fmt: skip
    return {"transformer": transformer, "vae": coder, "scheduler": euler(7.0), "tokenizer": reader,
            "text_encoder": encoder.model.language_model, "text_encoder_2": encoder_2, "tokenizer_2": reader_2,
            "guider": _diffusers.ClassifierFreeGuidance(guidance_scale=1.0)}  # fmt: skip


def hunyuan_video15() -> Any:
    """Returns a HunyuanVideo 1.5 pipeline (model card tencent/HunyuanVideo-1.5), guided by a part of its own."""
    return assemble("HunyuanVideo15Pipeline", **_hunyuan_video15_parts("t2v"))


def hunyuan_video15_i2v() -> Any:
    """Returns a HunyuanVideo 1.5 pipeline from a first frame (model card tencent/HunyuanVideo-1.5), seen by SigLIP."""
    vision = _transformers.SiglipVisionConfig(
        hidden_size=12, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16,
        patch_size=8)  # fmt: skip
    return assemble(
        "HunyuanVideo15ImageToVideoPipeline", image_encoder=_transformers.SiglipVisionModel(vision),
        feature_extractor=_transformers.SiglipImageProcessor(size={"height": 16, "width": 16}),
        **_hunyuan_video15_parts("i2v"))  # fmt: skip


def cogvideox() -> Any:
    """Returns a CogVideoX pipeline (Yang et al. 2024, arXiv 2408.06072): no flow, it predicts v under DDIM."""
    encoder, reader = t5()
    transformer = _diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=4, time_embed_dim=8,
        text_embed_dim=32, num_layers=1, sample_width=2, sample_height=2, sample_frames=9, patch_size=2,
        temporal_compression_ratio=4, max_text_seq_length=32)  # fmt: skip
    coder = _diffusers.AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 4, up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8,) * 4, latent_channels=4, layers_per_block=1, norm_num_groups=2,
        temporal_compression_ratio=4)  # fmt: skip
    scheduler = _diffusers.CogVideoXDDIMScheduler(
        prediction_type="v_prediction", rescale_betas_zero_snr=True, snr_shift_scale=3.0, timestep_spacing="trailing",
        beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, clip_sample=False)  # fmt: skip
    return assemble(
        "CogVideoXPipeline", transformer=transformer, vae=coder, scheduler=scheduler, text_encoder=encoder,
        tokenizer=reader)  # fmt: skip


def kandinsky5_t2v() -> Any:
    """Returns a Kandinsky 5.0 Video Lite pipeline (model card kandinskylab/Kandinsky-5.0-T2V-Lite-sft-5s-Diffusers)."""
    encoder, _, processor = qwen_vl()
    clip, reader = clip_text(16)
    return assemble(
        "Kandinsky5T2VPipeline", text_encoder=encoder, tokenizer=processor, text_encoder_2=clip, tokenizer_2=reader,
        transformer=kandinsky5_transformer(), scheduler=euler(), vae=hunyuan_video_vae(16))  # fmt: skip


def cosmos25() -> Any:
    """Returns a Cosmos-Predict2.5 pipeline (model card nvidia/Cosmos-Predict2.5-2B), stepped by UniPC."""
    encoder, reader, _ = qwen_vl()
    scheduler = _diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    return assemble(
        "Cosmos2_5_PredictBasePipeline", transformer=cosmos_transformer(in_channels=17, text_embed_dim=64),
        vae=wan_vae(), scheduler=scheduler, text_encoder=encoder, tokenizer=reader,
        safety_checker=OpenGuardrail())  # fmt: skip


def ltx2_transformer(**settings: Any) -> Any:
    """Returns the transformer of LTX-2, which predicts video and sound together."""
    return _diffusers.LTX2VideoTransformer3DModel(
        in_channels=4, out_channels=4, patch_size=1, patch_size_t=1, num_attention_heads=2, attention_head_dim=8,
        cross_attention_dim=16, audio_in_channels=4, audio_out_channels=4, audio_num_attention_heads=2,
        audio_attention_head_dim=4, audio_cross_attention_dim=8, num_layers=2, qk_norm="rms_norm_across_heads",
        caption_channels=32, rope_double_precision=False, rope_type="split", **settings)  # fmt: skip


def ltx2_sound() -> dict[str, Any]:
    """Returns LTX-2's autoencoder of sound and its vocoder, and the connectors between text and both networks."""
    connectors = LTX2TextConnectors(
        caption_channels=32, text_proj_in_factor=3, video_connector_num_attention_heads=4,
        video_connector_attention_head_dim=8, video_connector_num_layers=1,
        video_connector_num_learnable_registers=None, audio_connector_num_attention_heads=4,
        audio_connector_attention_head_dim=8, audio_connector_num_layers=1,
        audio_connector_num_learnable_registers=None, connector_rope_base_seq_len=32, rope_theta=10000.0,
        rope_double_precision=False, causal_temporal_positioning=False, rope_type="split")  # fmt: skip
    coder = _diffusers.AutoencoderKLLTX2Audio(
        base_channels=4, output_channels=2, ch_mult=(1,), num_res_blocks=1, attn_resolutions=None, in_channels=2,
        resolution=32, latent_channels=2, norm_type="pixel", causality_axis="height", dropout=0.0,
        mid_block_add_attention=False, sample_rate=16000, mel_hop_length=160, is_causal=True, mel_bins=8)  # fmt: skip
    vocoder = LTX2Vocoder(
        in_channels=16, hidden_channels=32, out_channels=2, upsample_kernel_sizes=[4, 4], upsample_factors=[2, 2],
        resnet_kernel_sizes=[3], resnet_dilations=[[1, 3, 5]], leaky_relu_negative_slope=0.1,
        output_sampling_rate=16000)  # fmt: skip
    return {"connectors": connectors, "audio_vae": coder, "vocoder": vocoder}


def ltx2_vae() -> Any:
    """Returns LTX-2's autoencoder of video: one latent pixel is 2 x 2 pixels of one frame."""
    return _diffusers.AutoencoderKLLTX2Video(
        latent_channels=4, block_out_channels=(8,), decoder_block_out_channels=(8,), layers_per_block=(1,),
        decoder_layers_per_block=(1, 1), spatio_temporal_scaling=(True,), decoder_spatio_temporal_scaling=(True,),
        decoder_inject_noise=(False, False), downsample_type=("spatial",), upsample_residual=(False,),
        upsample_factor=(1,), timestep_conditioning=False, patch_size=1, patch_size_t=1, encoder_causal=True,
        decoder_causal=False)  # fmt: skip


def ltx2_parts() -> dict[str, Any]:
    """Returns the parts of LTX-2, whose text encoder is Gemma 3."""
    encoder, processor = gemma3()  # its tokenizer pads to the left, as LTX-2 asks
    return {"transformer": ltx2_transformer(), "vae": ltx2_vae(), "scheduler": euler(), "text_encoder": encoder,
            "tokenizer": processor.tokenizer, **ltx2_sound()}  # fmt: skip


def ltx2() -> Any:
    """Returns an LTX-2 pipeline of video and sound (model card Lightricks/LTX-2)."""
    return assemble("LTX2Pipeline", **ltx2_parts())


def ltx2_i2v() -> Any:
    """Returns an LTX-2 pipeline of video and sound from a first frame (model card Lightricks/LTX-2)."""
    return assemble("LTX2ImageToVideoPipeline", **ltx2_parts())


def kandinsky6() -> Any:
    """Returns a Kandinsky 6.0 pipeline with sound (model card kandinskylab/Kandinsky-6.0-Pro-distill-5s-Diffusers)."""
    encoder, _, processor = qwen_vl()
    clip, reader = clip_text(16)
    transformer = _diffusers.Kandinsky6Transformer3DModel(
        in_visual_dim=16, out_visual_dim=16, in_text_dim=32, in_text_dim2=16, time_dim=16, model_dim=16, ff_dim=32,
        num_text_blocks=1, num_visual_blocks=2, axes_dims=(2, 2, 4), in_audio_dim=4, out_audio_dim=4,
        visual_token_type_num_embeddings=2)  # fmt: skip
    coder = _diffusers.MMAudioVAE(
        mel_bins=8, latent_channels=4, hidden_channels=8, channel_multipliers=(1, 1, 1), layers_per_block=1,
        sample_rate=16000, n_fft=64, hop_length=16)  # fmt: skip
    vocoder = _diffusers.MMAudioVocoder(
        num_mels=8, upsample_initial_channel=16, upsample_rates=(4, 4), upsample_kernel_sizes=(8, 8),
        resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1, 3),))  # fmt: skip
    return assemble(
        "Kandinsky6TI2VAPipeline", transformer=transformer, vae=hunyuan_video_vae(16), text_encoder=encoder,
        tokenizer=processor, text_encoder_2=clip, tokenizer_2=reader, scheduler=euler(), audio_vae=coder,
        vocoder=vocoder)  # fmt: skip


def mochi() -> Any:
    """Returns a Mochi 1 pipeline (model card genmo/mochi-1-preview), whose noise levels rise from 0 to 1."""
    encoder, reader = t5()
    transformer = _diffusers.MochiTransformer3DModel(
        patch_size=2, num_attention_heads=2, attention_head_dim=8, num_layers=2, pooled_projection_dim=16,
        in_channels=12, text_embed_dim=32, time_embed_dim=4, max_sequence_length=64)  # fmt: skip
    coder = _diffusers.AutoencoderKLMochi(
        encoder_block_out_channels=(32,) * 4, decoder_block_out_channels=(32,) * 4, layers_per_block=(1,) * 5
    )
    return assemble(
        "MochiPipeline", scheduler=_diffusers.FlowMatchEulerDiscreteScheduler(invert_sigmas=True), vae=coder,
        text_encoder=encoder, tokenizer=reader, transformer=transformer)  # fmt: skip


def chronoedit() -> Any:
    """Returns a ChronoEdit pipeline (model card nvidia/ChronoEdit-14B-Diffusers): an edit is the end of a clip."""
    encoder, reader = t5("UMT5")
    vision = _transformers.CLIPVisionConfig(
        hidden_size=4, projection_dim=4, num_hidden_layers=2, num_attention_heads=2, image_size=8, intermediate_size=16,
        patch_size=1)  # fmt: skip
    transformer = _diffusers.ChronoEditTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, in_channels=36, out_channels=16, text_dim=32, freq_dim=32,
        ffn_dim=32, num_layers=2, image_dim=4, rope_max_seq_len=32, rope_temporal_skip_len=8)  # fmt: skip
    return assemble(
        "ChronoEditPipeline", transformer=transformer, vae=wan_vae(), scheduler=euler(), text_encoder=encoder,
        tokenizer=reader, image_encoder=_transformers.CLIPVisionModel(vision),
        image_processor=_transformers.CLIPImageProcessor(crop_size=8, size=8))  # fmt: skip


def cosmos3() -> Any:
    """Returns a Cosmos 3 pipeline (diffusers' `Cosmos3OmniPipeline`): the network itself reads the prompt's tokens."""
    _, reader, _ = qwen_vl()
    transformer = _diffusers.Cosmos3OmniTransformer(
        head_dim=16, hidden_size=32, intermediate_size=32, latent_channel=16, patch_latent_dim=64,
        num_attention_heads=2, num_hidden_layers=2, num_key_value_heads=1, rope_axes_dim=(4, 2, 2), rope_theta=10000.0,
        vocab_size=(len(reader) + 15) // 16 * 16)  # fmt: skip
    scheduler = _diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    return assemble(
        "Cosmos3OmniPipeline", transformer=transformer, text_tokenizer=reader, vae=wan_vae(), scheduler=scheduler,
        enable_safety_checker=False)  # fmt: skip


_LTX2 = {**SIZE, "num_frames": 5, "frame_rate": 25.0, "max_sequence_length": 64, "stg_scale": 0.0,
         "modality_scale": 1.0, "audio_stg_scale": 0.0, "audio_modality_scale": 1.0,
         "spatio_temporal_guidance_blocks": None, "use_cross_timestep": False}  # fmt: skip
_HUNYUAN = {**CLIP, "max_sequence_length": 64, "prompt_template": {"template": "{}", "crop_start": 0},
            "guidance_scale": 4.5}  # fmt: skip

VIDEOS: Mapping[str, PipelineFamily] = MappingProxyType(
    {
        "wan21": PipelineFamily(wan21, CLIP, NO_GUIDANCE, GUIDANCE, makes="video"),
        "wan22": PipelineFamily(
            wan22,
            CLIP,
            NO_GUIDANCE,
            {**GUIDANCE, "guidance_scale_2": 4.0},
            networks=("transformer", "transformer_2"),
            makes="video",
        ),
        "wan22_5b": PipelineFamily(wan22_5b, {**CLIP, **SIZE}, NO_GUIDANCE, GUIDANCE, makes="video"),
        "wan22_5b_i2v": PipelineFamily(
            wan22_5b_i2v,
            {**CLIP, **SIZE},
            NO_GUIDANCE,
            GUIDANCE,
            makes="video",
            condition_arguments=("image",),
        ),
        "wan_i2v": PipelineFamily(wan_i2v, CLIP, NO_GUIDANCE, GUIDANCE, makes="video", condition_arguments=("image",)),
        "ltx": PipelineFamily(ltx, {**CLIP, **SIZE}, NO_GUIDANCE, {**GUIDANCE, "guidance_rescale": 0.5}, makes="video"),
        "ltx_i2v": PipelineFamily(
            ltx_i2v,
            {**CLIP, **SIZE},
            NO_GUIDANCE,
            GUIDANCE,
            makes="video",
            condition_arguments=("image",),
        ),
        "ltx2": PipelineFamily(
            ltx2,
            _LTX2,
            {**NO_GUIDANCE, "audio_guidance_scale": 1.0, "guidance_rescale": 0.0, "audio_guidance_rescale": 0.0},
            {**GUIDANCE, "audio_guidance_scale": 2.0, "guidance_rescale": 0.7},
            makes="video",
        ),
        "ltx2_i2v": PipelineFamily(
            ltx2_i2v,
            _LTX2,
            {**NO_GUIDANCE, "audio_guidance_scale": 1.0, "guidance_rescale": 0.0, "audio_guidance_rescale": 0.0},
            {**GUIDANCE, "audio_guidance_scale": 2.0},
            makes="video",
            condition_arguments=("image",),
        ),
        "hunyuan_video": PipelineFamily(hunyuan_video, _HUNYUAN, {"true_cfg_scale": 1.0}, TRUE_GUIDANCE, makes="video"),
        "hunyuan_video15": PipelineFamily(
            hunyuan_video15,
            {"height": 16, "width": 16, "num_frames": 5},
            guided={"negative_prompt": "ugly"},
            makes="video",
            guider="guider",
        ),
        "hunyuan_video15_i2v": PipelineFamily(
            hunyuan_video15_i2v,
            {"num_frames": 5},  # height and width follow from the picture and the network's `target_size`: 16
            guided={"negative_prompt": "ugly"},
            makes="video",
            condition_arguments=("image",),
            guider="guider",
        ),
        "cogvideox": PipelineFamily(cogvideox, CLIP, NO_GUIDANCE, GUIDANCE, makes="video"),
        "kandinsky5_t2v": PipelineFamily(
            kandinsky5_t2v, {**SIZE, "num_frames": 5, "max_sequence_length": 900}, NO_GUIDANCE, GUIDANCE, makes="video"
        ),
        "kandinsky6": PipelineFamily(
            kandinsky6, {**SIZE, "num_frames": 5, "max_sequence_length": 900}, NO_GUIDANCE, GUIDANCE, makes="video"
        ),
        "mochi": PipelineFamily(
            mochi,
            {"height": 16, "width": 16, "num_frames": 7, "max_sequence_length": 32},
            NO_GUIDANCE,
            GUIDANCE,
            makes="video",
        ),
        "chronoedit": PipelineFamily(
            chronoedit, {**CLIP, "num_frames": 5}, NO_GUIDANCE, GUIDANCE, makes="video", condition_arguments=("image",)
        ),
        "cosmos3": PipelineFamily(cosmos3, {**SIZE, "num_frames": 5}, NO_GUIDANCE, GUIDANCE, makes="video"),
        "cosmos25": PipelineFamily(
            cosmos25, {**SIZE, "num_frames": 5, "max_sequence_length": 200}, NO_GUIDANCE, GUIDANCE, makes="video"
        ),
    }
)
