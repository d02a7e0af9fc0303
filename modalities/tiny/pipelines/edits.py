"""Tiny image editing pipelines: a prompt carries pictures."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType, ModuleType
from typing import Any

from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus

from .family import PipelineFamily
from .images import flux2, flux2_klein, flux_parts, qwen_image21, qwen_image_transformer
from .parts import NO_GUIDANCE, SIZE, TRUE_GUIDANCE, assemble, dynamic_euler, qwen2_vl_processor, qwen_vae, qwen_vl


def flux_kontext() -> Any:
    """Returns a FLUX.1 Kontext pipeline (Labs et al. 2025, arXiv 2506.15742)."""
    return assemble("FluxKontextPipeline", **flux_parts())


def qwen_edit_parts() -> dict[str, Any]:
    """Returns the parts of Qwen-Image's edits: Qwen2.5-VL reads the picture too."""
    encoder, reader, processor = qwen_vl()
    return {"transformer": qwen_image_transformer(), "vae": qwen_vae(), "scheduler": dynamic_euler(),
            "text_encoder": encoder, "tokenizer": reader, "processor": qwen2_vl_processor(processor)}  # fmt: skip


def qwen_image_edit() -> Any:
    """Returns a Qwen-Image-Edit pipeline of one picture (Wu et al. 2025, arXiv 2508.02324)."""
    return assemble("QwenImageEditPipeline", **qwen_edit_parts())


def qwen_image_edit_plus() -> Any:
    """Returns a Qwen-Image-Edit pipeline of several pictures (model card Qwen/Qwen-Image-Edit-2509)."""
    return assemble("QwenImageEditPlusPipeline", **qwen_edit_parts())


@contextmanager
def replaced(module: ModuleType, **values: Any) -> Iterator[None]:
    """Gives variables of a module other values; sizes that a pipeline takes from its module have no other handle."""
    before = {name: vars(module)[name] for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(before)


def _small_qwen_edit() -> AbstractContextManager[None]:
    """Scales pictures to 32 x 32 pixels, where the pipeline's module scales them to a megapixel."""
    return replaced(pipeline_qwenimage_edit, calculate_dimensions=lambda area, ratio: (32, 32, None))


def _small_qwen_edit_plus() -> AbstractContextManager[None]:
    """Scales pictures to 32 x 32 pixels for the autoencoder and 64 x 64 for the text encoder, not to a megapixel."""
    return replaced(pipeline_qwenimage_edit_plus, VAE_IMAGE_SIZE=32 * 32, CONDITION_IMAGE_SIZE=64 * 64)


_KONTEXT = {**SIZE, "max_area": 32 * 32, "_auto_resize": False, "max_sequence_length": 48, "guidance_scale": 2.5}
_FLUX2 = {**SIZE, "max_sequence_length": 512, "text_encoder_out_layers": (1,)}
_QWEN = {**SIZE, "max_sequence_length": 700}

EDITS: Mapping[str, PipelineFamily] = MappingProxyType(
    {
        "flux_kontext": PipelineFamily(
            flux_kontext, _KONTEXT, {"true_cfg_scale": 1.0}, TRUE_GUIDANCE, condition_arguments=("image",)
        ),
        "flux2_edit": PipelineFamily(  # guidance is an input of the network and cannot be turned off
            flux2,
            _FLUX2,
            {"guidance_scale": 4.0},
            {"guidance_scale": 2.0},
            condition_arguments=("image",),
            condition_side=64,  # the pipeline takes no smaller one
        ),
        "flux2_klein_edit": PipelineFamily(
            flux2_klein,
            {**_FLUX2, "max_sequence_length": 96},
            NO_GUIDANCE,
            {"guidance_scale": 3.0},
            condition_arguments=("image",),
            condition_side=64,
        ),
        "qwen_image_edit": PipelineFamily(
            qwen_image_edit,
            _QWEN,
            {"true_cfg_scale": 1.0},
            TRUE_GUIDANCE,
            condition_arguments=("image",),
            small=_small_qwen_edit,
        ),
        "qwen_image_edit_plus": PipelineFamily(
            qwen_image_edit_plus,
            _QWEN,
            {"true_cfg_scale": 1.0},
            TRUE_GUIDANCE,
            condition_arguments=("image", "image"),
            small=_small_qwen_edit_plus,
        ),
        "qwen_image21_edit": PipelineFamily(
            qwen_image21,
            {**SIZE, "output_resolution": 32, "use_kv_cache": False},
            {"true_cfg_scale": 1.0},
            TRUE_GUIDANCE,
            condition_arguments=("image",),
        ),
    }
)
