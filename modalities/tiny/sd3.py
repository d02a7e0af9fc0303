"""The tiny twin of a Stable Diffusion 3.5 checkpoint: every part present, real classes, random weights."""

from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import nn
from transformers import T5Config, T5EncoderModel, T5Tokenizer

from .clip import WORDS, clip_encoder, clip_tokenizer, randomise

_diffusers: Any = diffusers  # its type information is that of its placeholders for a missing torch
_CLIP_WIDTHS = (16, 24)  # as in the real checkpoint the two differ, and both are narrower than T5
_T5_WIDTH = 48


def write_tiny_sd3(folder: Path, seed: int) -> None:
    """Writes a Stable Diffusion 3.5 pipeline of tiny random parts, as `StableDiffusion3Pipeline.save_pretrained` does.

    Source: Esser et al. 2024, arXiv 2403.03206; the settings that are not sizes are those of SD3.5-medium.
    One latent pixel is 4 x 4 image pixels and height and width are multiples of 8, at most 256.

    Args:
        folder: the pipeline's; made if it is not there.
        seed: of all weights; the same seed writes the same bytes, and torch's global generator is left as it was.
    """
    tokenizers = [clip_tokenizer("<|endoftext|>"), clip_tokenizer("!")]
    t5_reader = t5_tokenizer()
    with torch.random.fork_rng(devices=[]):  # the constructors draw weights that are overwritten below
        encoders = [
            clip_encoder(tokenizers[0], _CLIP_WIDTHS[0], "quick_gelu"),
            clip_encoder(tokenizers[1], _CLIP_WIDTHS[1], "gelu"),
        ]
        t5_encoder = _t5_encoder(t5_reader)
        transformer, vae = _transformer(), _vae()
    generator = torch.Generator().manual_seed(seed)
    modules: list[nn.Module] = [transformer, vae, *encoders, t5_encoder]
    for module in modules:
        randomise(module, generator)
    pipeline = _diffusers.StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=_diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=encoders[0],
        tokenizer=tokenizers[0],
        text_encoder_2=encoders[1],
        tokenizer_2=tokenizers[1],
        text_encoder_3=t5_encoder,
        tokenizer_3=t5_reader,
    )
    pipeline.save_pretrained(folder)


def t5_tokenizer() -> T5Tokenizer:
    """Returns a unigram tokenizer over printable ASCII and a few words; others become <unk>, as with the real T5."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(chr(code), -4.0) for code in range(ord("!"), ord("~") + 1)]
    pieces += [("▁" + word, -5.0) for word in WORDS.split()]
    return T5Tokenizer(vocab=pieces, model_max_length=512)


def _t5_encoder(tokenizer: T5Tokenizer) -> T5EncoderModel:
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=_T5_WIDTH,
        d_kv=16,
        d_ff=2 * _T5_WIDTH,
        num_layers=1,
        num_heads=2,
        feed_forward_proj="gated-gelu",
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return T5EncoderModel(config)


def _transformer() -> nn.Module:
    transformer: nn.Module = _diffusers.SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=16,
        out_channels=16,
        num_layers=2,
        num_attention_heads=2,
        attention_head_dim=16,
        caption_projection_dim=32,
        joint_attention_dim=_T5_WIDTH,
        pooled_projection_dim=sum(_CLIP_WIDTHS),
        pos_embed_max_size=32,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
    )
    return transformer


def _vae() -> nn.Module:
    vae: nn.Module = _diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(16, 16, 32),
        layers_per_block=1,
        latent_channels=16,
        norm_num_groups=4,
        sample_size=32,
        scaling_factor=1.5305,
        shift_factor=0.0609,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    return vae
