"""Small parts that several families share: text encoders with their tokenizers, autoencoders, schedulers."""

from types import MappingProxyType
from typing import Any

import diffusers
import torch
import transformers
from torch import nn

from ..clip import clip_encoder, clip_encoder_without_projection, clip_tokenizer
from ..qwen import qwen2_5_vl, qwen3_vl
from ..sd3 import t5_tokenizer
from ..text import build_tokenizer, chat_template, text_sizes

_diffusers: Any = diffusers  # its type information is that of its placeholders for a missing torch
_transformers: Any = transformers
_SPECIAL = ("<|endoftext|>", "<s>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = chat_template("<|im_start|>ROLE\n", "<|im_end|>\n", "<|im_start|>assistant\n", "")
_VAE_SHIFT, _VAE_SCALE = 0.0609, 1.5305  # of Stable Diffusion 3.5
SIZE = MappingProxyType({"height": 32, "width": 32})
CLIP = MappingProxyType({"height": 16, "width": 16, "num_frames": 9, "max_sequence_length": 32})  # of a video
NO_GUIDANCE = MappingProxyType({"guidance_scale": 1.0})
GUIDANCE = MappingProxyType({"guidance_scale": 3.0, "negative_prompt": "ugly"})
TRUE_GUIDANCE = MappingProxyType({"true_cfg_scale": 3.0, "negative_prompt": "ugly"})  # beside distilled guidance


def assemble(name: str, **parts: Any) -> Any:
    """Returns the pipeline of that class of diffusers with these parts, in eval mode and frozen."""
    for part in parts.values():
        if isinstance(part, nn.Module):
            part.eval().requires_grad_(False)
    pipeline = getattr(_diffusers, name)(**parts)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def euler(shift: float = 3.0) -> Any:
    """Returns a flow matching scheduler whose timesteps are shifted by a constant."""
    return _diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)


def dynamic_euler() -> Any:
    """Returns a flow matching scheduler whose shift grows with the number of tokens, set as FLUX sets it."""
    return _diffusers.FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=256, max_image_seq_len=4096
    )


def tokenizer(side: str = "right", longest: int = 4096) -> Any:
    """Returns a tokenizer that reads any text, with a chat template for text; longer texts have more tokens."""
    reader = build_tokenizer(_SPECIAL, eos="<|im_end|>", pad="<|endoftext|>", bos="<s>")
    reader.padding_side, reader.model_max_length = side, longest
    reader.chat_template = _TEMPLATE
    return reader


def language(family: str, reader: Any, kind: str = "Model", **settings: Any) -> Any:
    """Returns a small language model of a family of transformers: 2 layers, 32 channels. `kind`: what is on its top."""
    config = getattr(_transformers, f"{family}Config")(**text_sizes(reader, **settings))
    return getattr(_transformers, f"{family}{kind}")(config)


def clip_text(width: int = 32, has_projection: bool = False, longest: int = 77) -> tuple[Any, Any]:
    """Returns a small CLIP text encoder and its tokenizer."""
    reader = clip_tokenizer("<|endoftext|>")
    reader.model_max_length = longest
    encoder = clip_encoder if has_projection else clip_encoder_without_projection
    return encoder(reader, width, "quick_gelu"), reader


def t5(family: str = "T5", reader: Any | None = None) -> tuple[Any, Any]:
    """Returns a small encoder, of T5 or UMT5, and its tokenizer; `reader`: another tokenizer than T5's, as ByT5's."""
    chosen: Any = t5_tokenizer() if reader is None else reader
    vocabulary = (len(chosen) + 255) // 256 * 256  # ByT5's length leaves out its extra tokens
    config = getattr(_transformers, f"{family}Config")(
        vocab_size=vocabulary, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
        feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1)  # fmt: skip
    return getattr(_transformers, f"{family}EncoderModel")(config), chosen


def qwen_vl(version: str = "2.5") -> tuple[Any, Any, Any]:
    """Returns a small Qwen2.5-VL or Qwen3-VL, its tokenizer (padded to the right), and its processor."""
    model, processor = qwen2_5_vl() if version == "2.5" else qwen3_vl()
    reader = processor.tokenizer
    reader.padding_side, reader.model_max_length, reader.chat_template = "right", 4096, processor.chat_template
    return model, reader, processor


def deep_qwen3_vl(num_layers: int) -> Any:
    """Returns a small Qwen3-VL of many layers, for pipelines that read layers by fixed numbers."""
    shallow, _ = qwen3_vl()
    config = shallow.config
    config.text_config.num_hidden_layers = num_layers
    return _transformers.Qwen3VLForConditionalGeneration(config)


def qwen2_vl_processor(processor: Any) -> Any:
    """Returns the same processor as a Qwen2-VL's, which pipelines around Qwen2.5-VL name in their index."""
    return _transformers.Qwen2VLProcessor(
        processor.image_processor, processor.tokenizer, processor.video_processor,
        chat_template=processor.chat_template)  # fmt: skip


def vae(channels: int = 4, blocks: tuple[int, ...] = (4, 8), **settings: Any) -> Any:
    """Returns an `AutoencoderKL` that halves height and width once for each block after the first."""
    return _diffusers.AutoencoderKL(
        block_out_channels=blocks, layers_per_block=1, latent_channels=channels, norm_num_groups=1, sample_size=32,
        down_block_types=("DownEncoderBlock2D",) * len(blocks), up_block_types=("UpDecoderBlock2D",) * len(blocks),
        use_quant_conv=False, use_post_quant_conv=False, shift_factor=_VAE_SHIFT, scaling_factor=_VAE_SCALE, **settings,
    )  # fmt: skip


def flux2_vae() -> Any:
    """Returns FLUX.2's autoencoder; a batch norm's running values, not learnt weights, scale its latents."""
    coder = _diffusers.AutoencoderKLFlux2(
        sample_size=32, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(4, 8), layers_per_block=1, latent_channels=4, norm_num_groups=1, use_quant_conv=False,
        use_post_quant_conv=False)  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    coder.bn.running_mean.normal_(generator=generator)
    coder.bn.running_var.uniform_(0.5, 2.0, generator=generator)
    return coder


def qwen_vae() -> Any:
    """Returns Qwen-Image's autoencoder: one latent pixel is 4 x 4 image pixels."""
    return _diffusers.AutoencoderKLQwenImage(
        base_dim=8, z_dim=4, dim_mult=[1, 2, 2], num_res_blocks=1, temperal_downsample=[False, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0], latents_std=[1.0, 1.5, 0.8, 1.2])  # fmt: skip


def wan_vae(**settings: Any) -> Any:
    """Returns Wan's autoencoder: one latent pixel is 8 x 8 pixels of 4 frames."""
    sizes = {"base_dim": 3, "z_dim": 16, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1,
             "temperal_downsample": [False, True, True]}  # fmt: skip
    return _diffusers.AutoencoderKLWan(**{**sizes, **settings})


def hunyuan_video_vae(channels: int = 4) -> Any:
    """Returns HunyuanVideo's autoencoder: one latent pixel is 8 x 8 pixels of 4 frames."""
    return _diffusers.AutoencoderKLHunyuanVideo(
        latent_channels=channels, down_block_types=("HunyuanVideoDownBlock3D",) * 4,
        up_block_types=("HunyuanVideoUpBlock3D",) * 4, block_out_channels=(8,) * 4, layers_per_block=1,
        norm_num_groups=4, scaling_factor=0.476986, spatial_compression_ratio=8, temporal_compression_ratio=4,
        mid_block_add_attention=True)  # fmt: skip
