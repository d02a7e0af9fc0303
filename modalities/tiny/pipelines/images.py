"""Tiny text-to-image pipelines."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import diffusers
import transformers

from ..text import build_tokenizer, chat_template, text_sizes
from .family import PipelineFamily
from .guardrail import OpenGuardrail
from .parts import (
    GUIDANCE,
    NO_GUIDANCE,
    SIZE,
    TRUE_GUIDANCE,
    assemble,
    clip_text,
    deep_qwen3_vl,
    dynamic_euler,
    euler,
    flux2_vae,
    language,
    qwen2_vl_processor,
    qwen_vae,
    qwen_vl,
    t5,
    tokenizer,
    vae,
    wan_vae,
)

_diffusers: Any = diffusers  # its type information is that of its placeholders for a missing torch
_transformers: Any = transformers
_GLM_CODES = 16  # of an image's tokens
_GLM_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "partial_rotary_factor": 1.0}
_GLM_TEMPLATE = chat_template("", "", "", "<|image|>")


def sd3() -> Any:
    """Returns a Stable Diffusion 3 pipeline (Esser et al. 2024, arXiv 2403.03206)."""
    (clip, reader), (clip_2, reader_2), (t5_encoder, reader_3) = clip_text(16, True), clip_text(16, True), t5()
    transformer = _diffusers.SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        caption_projection_dim=32, joint_attention_dim=32, pooled_projection_dim=32, out_channels=4)  # fmt: skip
    return assemble(
        "StableDiffusion3Pipeline", transformer=transformer, scheduler=euler(), vae=vae(), text_encoder=clip,
        tokenizer=reader, text_encoder_2=clip_2, tokenizer_2=reader_2, text_encoder_3=t5_encoder,
        tokenizer_3=reader_3)  # fmt: skip


def flux_transformer(channels: int = 16) -> Any:
    """Returns the transformer of FLUX.1 [dev]; `channels`: of what it reads, over 16 where pictures are among it."""
    return _diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=channels, out_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
        guidance_embeds=True)  # fmt: skip


def flux_parts() -> dict[str, Any]:
    """Returns the parts of FLUX.1 [dev]; Kontext has the same."""
    (clip, reader), (t5_encoder, reader_2) = clip_text(), t5()
    return {"scheduler": dynamic_euler(), "text_encoder": clip, "tokenizer": reader, "text_encoder_2": t5_encoder,
            "tokenizer_2": reader_2, "transformer": flux_transformer(), "vae": vae()}  # fmt: skip


def flux() -> Any:
    """Returns a FLUX.1 pipeline (model card black-forest-labs/FLUX.1-dev); the distilled guidance is an input."""
    return assemble("FluxPipeline", **flux_parts())


def flux2_transformer(has_guidance: bool) -> Any:
    """Returns the transformer of FLUX.2 over text features of 32 channels."""
    return _diffusers.Flux2Transformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, timestep_guidance_channels=16, axes_dims_rope=[4, 4, 4, 4],
        guidance_embeds=has_guidance)  # fmt: skip


def flux2() -> Any:
    """Returns a FLUX.2 [dev] pipeline (model card black-forest-labs/FLUX.2-dev), whose text encoder is Mistral 3."""
    reader = tokenizer("left")
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
              "head_dim": 8, "image_size": 28, "patch_size": 14}  # fmt: skip
    config = _transformers.Mistral3Config(
        text_config=_transformers.MistralConfig(**text_sizes(reader, sliding_window=None)),
        vision_config=_transformers.PixtralVisionConfig(**vision), image_token_index=0)  # fmt: skip
    return assemble(
        "Flux2Pipeline", scheduler=dynamic_euler(), tokenizer=reader,
        text_encoder=_transformers.Mistral3ForConditionalGeneration(config),
        transformer=flux2_transformer(has_guidance=True), vae=flux2_vae())  # fmt: skip


def flux2_klein_parts() -> dict[str, Any]:
    """Returns the parts of FLUX.2 [klein]: Qwen3 reads the prompt, and guidance is not distilled."""
    reader = tokenizer()
    return {"scheduler": dynamic_euler(), "text_encoder": language("Qwen3", reader, "ForCausalLM"),
            "tokenizer": reader, "transformer": flux2_transformer(has_guidance=False),
            "vae": flux2_vae()}  # fmt: skip


def flux2_klein() -> Any:
    """Returns a FLUX.2 [klein] pipeline (model card black-forest-labs/FLUX.2-klein-4B)."""
    return assemble("Flux2KleinPipeline", **flux2_klein_parts())


def qwen_image_transformer() -> Any:
    """Returns the transformer of Qwen-Image and its edits."""
    return _diffusers.QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, guidance_embeds=False, axes_dims_rope=(8, 4, 4))  # fmt: skip


def qwen_image_parts() -> dict[str, Any]:
    """Returns the parts of Qwen-Image, whose text encoder is Qwen2.5-VL."""
    encoder, reader, _ = qwen_vl()
    return {"transformer": qwen_image_transformer(), "vae": qwen_vae(), "scheduler": dynamic_euler(),
            "text_encoder": encoder, "tokenizer": reader}  # fmt: skip


def qwen_image() -> Any:
    """Returns a Qwen-Image pipeline (Wu et al. 2025, arXiv 2508.02324)."""
    return assemble("QwenImagePipeline", **qwen_image_parts())


def z_image_parts() -> dict[str, Any]:
    """Returns the parts of Z-Image, whose text encoder is Qwen3."""
    reader = tokenizer()
    transformer = _diffusers.ZImageTransformer2DModel(
        all_patch_size=(2,), all_f_patch_size=(1,), in_channels=4, dim=32, n_layers=2, n_refiner_layers=1, n_heads=2,
        n_kv_heads=2, norm_eps=1e-5, qk_norm=True, cap_feat_dim=32, rope_theta=256.0, t_scale=1000.0,
        axes_dims=[8, 4, 4], axes_lens=[256, 32, 32])  # fmt: skip
    return {"transformer": transformer, "vae": vae(), "scheduler": euler(), "text_encoder": language("Qwen3", reader),
            "tokenizer": reader}  # fmt: skip


def z_image() -> Any:
    """Returns a Z-Image pipeline (model card Tongyi-MAI/Z-Image-Turbo); guidance is off at scale 0."""
    return assemble("ZImagePipeline", **z_image_parts())


def lumina2() -> Any:
    """Returns a Lumina-Image 2.0 pipeline (Qin et al. 2025, arXiv 2503.21758)."""
    reader = tokenizer(longest=256)
    transformer = _diffusers.Lumina2Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, hidden_size=32, num_layers=2, num_attention_heads=2,
        num_kv_heads=1, multiple_of=16, axes_dim_rope=[8, 4, 4], cap_feat_dim=32, axes_lens=[300, 64, 64])  # fmt: skip
    return assemble(
        "Lumina2Pipeline", transformer=transformer, vae=vae(4, (4, 4, 4, 8)), scheduler=dynamic_euler(),
        text_encoder=language("Gemma2", reader), tokenizer=reader)  # fmt: skip


def sana() -> Any:
    """Returns a Sana pipeline with linear attention and a deep autoencoder (Xie et al. 2024, arXiv 2410.10629)."""
    reader = tokenizer()
    transformer = _diffusers.SanaTransformer2DModel(
        patch_size=1, in_channels=4, out_channels=4, num_layers=2, num_attention_heads=2, attention_head_dim=8,
        num_cross_attention_heads=2, cross_attention_head_dim=8, cross_attention_dim=16, caption_channels=32,
        sample_size=32)  # fmt: skip
    coder = _diffusers.AutoencoderDC(
        in_channels=3, latent_channels=4, attention_head_dim=2, encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"), encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8), encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1), decoder_layers_per_block=[1, 1], downsample_block_type="conv",
        upsample_block_type="interpolate", decoder_norm_types="rms_norm", decoder_act_fns="silu",
        scaling_factor=0.41407)  # fmt: skip
    return assemble(
        "SanaPipeline", transformer=transformer, vae=coder, scheduler=euler(), text_encoder=language("Gemma2", reader),
        tokenizer=reader)  # fmt: skip


def chroma() -> Any:
    """Returns a Chroma pipeline (model card lodestones/Chroma1-HD): FLUX.1 without CLIP and with an approximator."""
    encoder, reader = t5()
    transformer = _diffusers.ChromaTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, axes_dims_rope=[4, 4, 8], approximator_hidden_dim=32, approximator_layers=1,
        approximator_num_channels=16)  # fmt: skip
    return assemble(
        "ChromaPipeline", transformer=transformer, vae=vae(), scheduler=dynamic_euler(), text_encoder=encoder,
        tokenizer=reader)  # fmt: skip


def hidream() -> Any:
    """Returns a HiDream-I1 pipeline with experts (Cai et al. 2025, arXiv 2505.22705).

    The pipeline makes every image as large as 128 x 128 latent pixels, so that a patch is 8 x 8 of them.
    """
    (clip, reader), (clip_2, reader_2), (t5_encoder, reader_3) = clip_text(32, True), clip_text(32, True), t5()
    reader_4, coder = tokenizer(), vae(4, (4,), mid_block_add_attention=False)
    transformer = _diffusers.HiDreamImageTransformer2DModel(
        patch_size=8, in_channels=4, out_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8,
        num_attention_heads=4, caption_channels=[32, 32], text_emb_dim=64, num_routed_experts=4,
        num_activated_experts=2, axes_dims_rope=(4, 2, 2), max_resolution=(128, 128), llama_layers=(0, 1))  # fmt: skip
    return assemble(
        "HiDreamImagePipeline", transformer=transformer, vae=coder, scheduler=euler(), text_encoder=clip,
        tokenizer=reader, text_encoder_2=clip_2, tokenizer_2=reader_2, text_encoder_3=t5_encoder, tokenizer_3=reader_3,
        text_encoder_4=language("Llama", reader_4, "ForCausalLM"), tokenizer_4=reader_4)  # fmt: skip


def krea2() -> Any:
    """Returns a Krea 2 pipeline (diffusers' `Krea2Pipeline`), which reads several layers of Qwen3-VL."""
    encoder, reader, _ = qwen_vl("3")
    transformer = _diffusers.Krea2Transformer2DModel(
        in_channels=16, num_layers=2, attention_head_dim=8, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, timestep_embed_dim=8, text_hidden_dim=32, num_text_layers=3, text_num_attention_heads=2,
        text_num_key_value_heads=1, text_intermediate_size=16, num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1, axes_dims_rope=(4, 2, 2), rope_theta=1000.0)  # fmt: skip
    return assemble(
        "Krea2Pipeline", transformer=transformer, vae=qwen_vae(), scheduler=dynamic_euler(),
        text_encoder=encoder.model, tokenizer=reader, text_encoder_select_layers=(0, 1, 2))  # fmt: skip


def longcat_image() -> Any:
    """Returns a LongCat-Image pipeline (model card meituan-longcat/LongCat-Image)."""
    encoder, reader, processor = qwen_vl()
    transformer = _diffusers.LongCatImageTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8])  # fmt: skip
    return assemble(
        "LongCatImagePipeline", transformer=transformer, vae=vae(16), scheduler=dynamic_euler(), text_encoder=encoder,
        tokenizer=reader, text_processor=qwen2_vl_processor(processor))  # fmt: skip


def kandinsky5_transformer() -> Any:
    """Returns the transformer of Kandinsky 5 for images and videos."""
    return _diffusers.Kandinsky5Transformer3DModel(
        in_visual_dim=16, in_text_dim=32, in_text_dim2=16, time_dim=16, out_visual_dim=16, patch_size=(1, 2, 2),
        model_dim=16, ff_dim=32, num_text_blocks=1, num_visual_blocks=2, axes_dims=(1, 1, 2), visual_cond=False,
        attention_type="regular")  # fmt: skip


def kandinsky5_t2i() -> Any:
    """Returns a Kandinsky 5.0 Image Lite pipeline (model card kandinskylab/Kandinsky-5.0-T2I-Lite-sft-Diffusers)."""
    encoder, _, processor = qwen_vl()
    clip, reader = clip_text(16)
    return assemble(
        "Kandinsky5T2IPipeline", text_encoder=encoder, tokenizer=processor, text_encoder_2=clip, tokenizer_2=reader,
        transformer=kandinsky5_transformer(), scheduler=euler(), vae=vae(16, (4, 4, 4, 8)))  # fmt: skip


@contextmanager
def _small_kandinsky5() -> Iterator[None]:
    """Lets Kandinsky 5 make images of 64 x 64 pixels; each of its pipelines holds a list of sizes of a megapixel."""
    kind = _diffusers.Kandinsky5T2IPipeline
    kind.resolutions = property(lambda _: [(64, 64)], lambda *_: None)  # goes before the list of the object
    try:
        yield
    finally:
        del kind.resolutions


def cosmos_transformer(**settings: Any) -> Any:
    """Returns the transformer of Cosmos-Predict 2 and 2.5."""
    sizes = {
        "in_channels": 16, "out_channels": 16, "num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2,
        "mlp_ratio": 2, "text_embed_dim": 32, "adaln_lora_dim": 4, "max_size": (4, 32, 32), "patch_size": (1, 2, 2),
        "rope_scale": (2.0, 1.0, 1.0), "concat_padding_mask": True, "extra_pos_embed_type": "learnable"}  # fmt: skip
    return _diffusers.CosmosTransformer3DModel(**{**sizes, **settings})


def cosmos2_t2i() -> Any:
    """Returns a Cosmos-Predict2 text-to-image pipeline (model card nvidia/Cosmos-Predict2-2B-Text2Image)."""
    encoder, reader = t5()
    return assemble(
        "Cosmos2TextToImagePipeline", transformer=cosmos_transformer(), vae=wan_vae(),
        scheduler=_diffusers.FlowMatchEulerDiscreteScheduler(use_karras_sigmas=True), text_encoder=encoder,
        tokenizer=reader, safety_checker=OpenGuardrail())  # fmt: skip


def ideogram4() -> Any:
    """Returns an Ideogram 4 pipeline (model card ideogram-ai/ideogram-v4): a second network has no prompt.

    The pipeline reads 13 layers of the text encoder, up to the 36th; a tiny one has 36 layers too.
    """
    _, reader, _ = qwen_vl("3")
    return assemble(
        "Ideogram4Pipeline", transformer=_ideogram4_transformer(), unconditional_transformer=_ideogram4_transformer(),
        vae=flux2_vae(), scheduler=euler(1.0), text_encoder=deep_qwen3_vl(36).model, tokenizer=reader,
        prompt_enhancer_head=None)  # fmt: skip


def _ideogram4_transformer() -> Any:
    return _diffusers.Ideogram4Transformer2DModel(
        in_channels=16, num_layers=2, attention_head_dim=16, num_attention_heads=2, intermediate_size=32, adaln_dim=16,
        llm_features_dim=13 * 32, rope_theta=10000, mrope_section=(4, 2, 2))  # fmt: skip


def qwen_image21_parts() -> dict[str, Any]:
    """Returns the parts of Qwen-Image 2.1, whose text encoder is Qwen3-VL and whose pictures have opacity."""
    encoder, _, processor = qwen_vl("3")
    transformer = _diffusers.QwenImage21Transformer2DModel(
        in_channels=8, out_channels=8, num_layers=2, attention_head_dim=16, num_attention_heads=2, context_in_dim=32,
        axes_dims_rope=(4, 6, 6))  # fmt: skip
    coder = _diffusers.AutoencoderKLQwenImage21(
        base_dim=4, decoder_base_dim=4, z_dim=8, dim_mult=[1, 1, 1, 1, 1], num_res_blocks=1,
        latents_mean=[0.1] * 8, latents_std=[1.2] * 8)  # fmt: skip
    return {"transformer": transformer, "vae": coder, "scheduler": dynamic_euler(), "text_encoder": encoder,
            "processor": processor}  # fmt: skip


def qwen_image21() -> Any:
    """Returns a Qwen-Image 2.1 pipeline (model card Qwen/Qwen-Image-2.1)."""
    return assemble("QwenImage21Pipeline", **qwen_image21_parts())


def glm_image() -> Any:
    """Returns a GLM-Image pipeline (diffusers' `GlmImagePipeline`): a language model samples tokens of a small image.

    It samples them with torch's global generator, which the pipeline seeds: 256, and one for each 32 x 32 pixels. The
    tokens of a random model hardly depend on the prompt, so that the image has 16 of them.
    """
    named = {"image_token": "<|image|>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
    reader = build_tokenizer(("<|endoftext|>", "<s>", *named.values()), eos="<|endoftext|>", pad="<|endoftext|>",
                             bos="<s>", named=named)  # fmt: skip
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "image_size": 56, "patch_size": 14,
              "intermediate_size": 32}  # fmt: skip
    config = _transformers.GlmImageConfig(
        text_config=text_sizes(reader, vision_vocab_size=_GLM_CODES + 8, rope_parameters=_GLM_ROPE),
        vision_config=vision, vq_config={"embed_dim": 8, "num_embeddings": _GLM_CODES, "latent_channels": 16},
        image_token_id=reader.image_token_id, image_start_token_id=_GLM_CODES,
        image_end_token_id=_GLM_CODES + 1)  # fmt: skip
    model = _transformers.GlmImageForConditionalGeneration(config)
    model.generation_config.eos_token_id = None  # random weights would end the image early
    processor = _transformers.GlmImageProcessor(
        _transformers.GlmImageImageProcessor(patch_size=14, merge_size=1), reader, chat_template=_GLM_TEMPLATE
    )
    encoder, glyphs = t5(reader=_transformers.ByT5Tokenizer())
    transformer = _diffusers.GlmImageTransformer2DModel(
        patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        text_embed_dim=32, time_embed_dim=16, condition_dim=8,
        prior_vq_quantizer_codebook_size=_GLM_CODES + 8)  # fmt: skip
    coder = vae(4, (4, 4, 4, 8), latents_mean=[0.1, -0.2, 0.3, 0.0], latents_std=[1.0, 1.5, 0.8, 1.2])
    return assemble(
        "GlmImagePipeline", tokenizer=glyphs, processor=processor, text_encoder=encoder, vision_language_encoder=model,
        vae=coder, transformer=transformer, scheduler=dynamic_euler())  # fmt: skip


def aura_flow() -> Any:
    """Returns an AuraFlow pipeline (model card fal/AuraFlow-v0.3), whose text encoder is UMT5."""
    encoder, reader = t5("UMT5")
    transformer = _diffusers.AuraFlowTransformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, attention_head_dim=8,
        num_attention_heads=4, joint_attention_dim=32, caption_projection_dim=32, out_channels=4,
        pos_embed_max_size=64)  # fmt: skip
    return assemble(
        "AuraFlowPipeline", tokenizer=reader, text_encoder=encoder, vae=vae(), transformer=transformer,
        scheduler=euler(1.73))  # fmt: skip


IMAGES: Mapping[str, PipelineFamily] = MappingProxyType(
    {
        "sd3": PipelineFamily(sd3, {**SIZE, "max_sequence_length": 48}, NO_GUIDANCE, GUIDANCE),
        "flux": PipelineFamily(
            flux, {**SIZE, "max_sequence_length": 48, "guidance_scale": 3.5}, {"true_cfg_scale": 1.0}, TRUE_GUIDANCE
        ),
        "flux2": PipelineFamily(
            flux2,
            {**SIZE, "max_sequence_length": 512, "text_encoder_out_layers": (1,)},
            {"guidance_scale": 4.0},  # guidance is an input of the network and cannot be turned off
            {"guidance_scale": 2.0},
        ),
        "flux2_klein": PipelineFamily(
            flux2_klein,
            {**SIZE, "max_sequence_length": 96, "text_encoder_out_layers": (1,)},
            NO_GUIDANCE,
            {"guidance_scale": 3.0},
        ),
        "qwen_image": PipelineFamily(
            qwen_image, {**SIZE, "max_sequence_length": 700}, {"true_cfg_scale": 1.0}, TRUE_GUIDANCE
        ),
        "z_image": PipelineFamily(
            z_image,
            {**SIZE, "max_sequence_length": 64},
            {"guidance_scale": 0.0},
            {**GUIDANCE, "cfg_normalization": 1.0},
        ),
        "lumina2": PipelineFamily(lumina2, {**SIZE, "max_sequence_length": 256}, NO_GUIDANCE, GUIDANCE),
        "sana": PipelineFamily(
            sana,
            {**SIZE, "max_sequence_length": 64, "complex_human_instruction": None, "use_resolution_binning": False},
            NO_GUIDANCE,
            GUIDANCE,
        ),
        "chroma": PipelineFamily(chroma, {**SIZE, "max_sequence_length": 48}, NO_GUIDANCE, GUIDANCE),
        "hidream": PipelineFamily(
            hidream, {"height": 128, "width": 128, "max_sequence_length": 64}, NO_GUIDANCE, GUIDANCE
        ),
        "krea2": PipelineFamily(krea2, {**SIZE, "max_sequence_length": 256}, {"guidance_scale": 0.0}, GUIDANCE),
        "longcat_image": PipelineFamily(longcat_image, {**SIZE, "enable_prompt_rewrite": False}, NO_GUIDANCE, GUIDANCE),
        "kandinsky5_t2i": PipelineFamily(
            kandinsky5_t2i,
            {"height": 64, "width": 64, "max_sequence_length": 900},
            NO_GUIDANCE,
            GUIDANCE,
            small=_small_kandinsky5,
        ),
        "ideogram4": PipelineFamily(
            ideogram4,
            {**SIZE, "max_sequence_length": 64, "guidance_schedule": None},
            {"guidance_scale": 1.0},
            {"guidance_scale": 3.0},
            networks=("transformer", "unconditional_transformer"),
        ),
        "glm_image": PipelineFamily(
            glm_image, {"height": 128, "width": 128, "max_sequence_length": 64}, NO_GUIDANCE, {"guidance_scale": 3.0}
        ),
        "qwen_image21": PipelineFamily(
            qwen_image21,
            {**SIZE, "use_kv_cache": False},  # which keeps keys and values of the first step for the later ones
            {"true_cfg_scale": 1.0},
            TRUE_GUIDANCE,
        ),
        "aura_flow": PipelineFamily(aura_flow, {**SIZE, "max_sequence_length": 48}, NO_GUIDANCE, GUIDANCE),
        "cosmos2_t2i": PipelineFamily(cosmos2_t2i, {**SIZE, "max_sequence_length": 32}, NO_GUIDANCE, GUIDANCE),
    }
)
