"""Tiny pipelines whose prompts carry other images than a picture to edit: a control, a mask, a last frame."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_inpaint

from .edits import qwen_edit_parts, replaced
from .family import PipelineFamily
from .images import flux_parts, flux_transformer
from .parts import CLIP, GUIDANCE, NO_GUIDANCE, SIZE, TRUE_GUIDANCE, assemble, euler, t5, wan_vae
from .videos import wan_i2v, wan_transformer


def flux_control() -> Any:
    """Returns a FLUX.1 pipeline that follows edges or depth (model card black-forest-labs/FLUX.1-Canny-dev)."""
    return assemble("FluxControlPipeline", **flux_parts() | {"transformer": flux_transformer(32)})


def flux_fill() -> Any:
    """Returns a FLUX.1 pipeline that fills the white of a mask (model card black-forest-labs/FLUX.1-Fill-dev).

    Its network reads latents, the latents of the masked picture, and the 2 x 2 pixels of the mask under each of them.
    """
    return assemble("FluxFillPipeline", **flux_parts() | {"transformer": flux_transformer(16 + 16 + 16)})


def qwen_image_edit_inpaint() -> Any:
    """Returns a Qwen-Image-Edit pipeline that puts the picture back outside of a mask after each step."""
    return assemble("QwenImageEditInpaintPipeline", **qwen_edit_parts())


def _small_inpaint() -> AbstractContextManager[None]:
    """Scales pictures to 32 x 32 pixels, where the pipeline's module scales them to a megapixel."""
    return replaced(pipeline_qwenimage_edit_inpaint, calculate_dimensions=lambda area, ratio: (32, 32, None))


def wan22_flf2v() -> Any:
    """Returns a Wan 2.2 pipeline from a first and a last frame (model card Wan-AI/Wan2.2-I2V-A14B).

    It has two networks, and no part that reads the frames but the autoencoder.
    """
    encoder, reader = t5("UMT5")
    return assemble(
        "WanImageToVideoPipeline", transformer=wan_transformer(in_channels=36),
        transformer_2=wan_transformer(in_channels=36), vae=wan_vae(), scheduler=euler(), text_encoder=encoder,
        tokenizer=reader, image_encoder=None, image_processor=None, boundary_ratio=0.9)  # fmt: skip


def wan21_flf2v() -> Any:
    """Returns a Wan 2.1 pipeline from a first and a last frame (model card Wan-AI/Wan2.1-FLF2V-14B-720P).

    CLIP sees both frames, and the transformer takes their features as two entries of a batch for each sample.
    """
    return wan_i2v(pos_embed_seq_len=2 * (8 * 8 + 1))  # tokens of CLIP for both frames


_FLUX = {**SIZE, "max_sequence_length": 48, "guidance_scale": 3.5}

CONDITIONED: Mapping[str, PipelineFamily] = MappingProxyType(
    {
        "flux_control": PipelineFamily(
            flux_control, _FLUX, guided={"guidance_scale": 2.0}, condition_arguments=("control_image",)
        ),
        "flux_fill": PipelineFamily(
            flux_fill, _FLUX, guided={"guidance_scale": 2.0}, condition_arguments=("image", "mask_image")
        ),
        "qwen_image_edit_inpaint": PipelineFamily(
            qwen_image_edit_inpaint,
            {**SIZE, "max_sequence_length": 700, "strength": 1.0},
            {"true_cfg_scale": 1.0},
            TRUE_GUIDANCE,
            condition_arguments=("image", "mask_image"),
            small=_small_inpaint,
        ),
        "wan21_flf2v": PipelineFamily(
            wan21_flf2v, CLIP, NO_GUIDANCE, GUIDANCE, makes="video", condition_arguments=("image", "last_image")
        ),
        "wan22_flf2v": PipelineFamily(
            wan22_flf2v,
            CLIP,
            NO_GUIDANCE,
            {**GUIDANCE, "guidance_scale_2": 4.0},
            networks=("transformer", "transformer_2"),
            makes="video",
            condition_arguments=("image", "last_image"),
        ),
    }
)
