"""The tiny twins of Stable Diffusion 1.5 and XL checkpoints: every part present, real classes, random weights."""

from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import nn

from .clip import clip_encoder, clip_encoder_without_projection, clip_tokenizer, randomise

_diffusers: Any = diffusers  # its type information is that of its placeholders for a missing torch
_WIDTHS = (16, 24)  # of the CLIPs; the second is XL's only


def write_tiny_stable_diffusion(folder: Path, seed: int, *, embeds_guidance: bool = False) -> None:
    """Writes a Stable Diffusion 1.5 pipeline of tiny random parts, without a safety checker, as diffusers saves one.

    Source: Rombach et al. 2022, arXiv 2112.10752; settings that are not sizes are those of SD 1.5, but for the
    scheduler: DDIM, where that checkpoint names PNDM. One latent pixel is 4 x 4 image pixels, and height and width are
    multiples of 8.

    Args:
        folder: the pipeline's; made if it is not there.
        seed: of all weights; the same seed writes the same bytes, and torch's global generator is left as it was.
        embeds_guidance: the network takes the guidance scale, and the scheduler is that of consistency models, as
            LCM Dreamshaper has both (Luo et al. 2023, arXiv 2310.04378).
    """
    extra, scheduler = _with_guidance() if embeds_guidance else ({}, _ddim())
    tokenizer = clip_tokenizer("<|endoftext|>")
    with torch.random.fork_rng(devices=[]):  # the constructors draw weights that are overwritten below
        encoder = clip_encoder_without_projection(tokenizer, _WIDTHS[0], "quick_gelu")
        unet, vae = _unet(attention_head_dim=2, cross_attention_dim=_WIDTHS[0], **extra), _vae(0.18215)
    _randomise_all([unet, vae, encoder], seed)
    _diffusers.StableDiffusionPipeline(
        unet=unet,
        vae=vae,
        text_encoder=encoder,
        tokenizer=tokenizer,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)


def write_tiny_stable_diffusion_xl(folder: Path, seed: int, *, embeds_guidance: bool = False) -> None:
    """Writes a Stable Diffusion XL pipeline of tiny random parts (Podell et al. 2023, arXiv 2307.01952).

    The scheduler is DDIM, where the checkpoint names Euler. `embeds_guidance`: as above.
    """
    extra, scheduler = _with_guidance() if embeds_guidance else ({}, _ddim())
    tokenizers = [clip_tokenizer("<|endoftext|>"), clip_tokenizer("!")]
    with torch.random.fork_rng(devices=[]):
        encoders: list[nn.Module] = [
            clip_encoder_without_projection(tokenizers[0], _WIDTHS[0], "quick_gelu"),
            clip_encoder(tokenizers[1], _WIDTHS[1], "gelu"),
        ]
        unet = _unet(
            attention_head_dim=(1, 2),
            cross_attention_dim=sum(_WIDTHS),
            use_linear_projection=True,
            transformer_layers_per_block=(1, 2),
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=6 * 8 + _WIDTHS[1],
            **extra,
        )
        vae = _vae(0.13025)
    _randomise_all([unet, vae, *encoders], seed)
    _diffusers.StableDiffusionXLPipeline(
        unet=unet,
        vae=vae,
        text_encoder=encoders[0],
        tokenizer=tokenizers[0],
        text_encoder_2=encoders[1],
        tokenizer_2=tokenizers[1],
        scheduler=scheduler,
        add_watermarker=False,
    ).save_pretrained(folder)


def _with_guidance() -> tuple[dict[str, Any], Any]:
    return {"time_cond_proj_dim": 16}, _diffusers.LCMScheduler.from_config(_ddim().config)


def _ddim() -> Any:
    return _diffusers.DDIMScheduler(
        num_train_timesteps=1000,
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )


def _randomise_all(modules: list[nn.Module], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for module in modules:
        randomise(module, generator)


def _unet(**settings: Any) -> nn.Module:
    unet: nn.Module = _diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        **settings,
    )
    return unet


def _vae(scaling_factor: float) -> nn.Module:
    vae: nn.Module = _diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(16, 16, 32),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=32,
        scaling_factor=scaling_factor,
    )
    return vae
