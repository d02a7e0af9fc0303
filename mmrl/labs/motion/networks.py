"""The networks and the tokenizer of the lab, an LTX-Video in miniature, with random weights."""

import itertools
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_ltx import AutoencoderKLLTXVideo
from diffusers.models.transformers.transformer_ltx import LTXVideoTransformer3DModel
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

from mmrl.labs.motion import world
from mmrl.labs.shapes.world import COLOURS, SHAPES

GRID = (3, 2, 2)  # frames, height and width of latents
NUM_CHANNELS = 16
LATENT_SHAPE = (12, NUM_CHANNELS)  # tokens, channels: the pipeline keeps latents so
MAX_SEQUENCE_LENGTH = 5  # text tokens: colour, shape, "moves", direction, end
TEXT_WIDTH = 64
# seconds and pixels of a token, by which the pipeline scales the places of tokens: a token spans 4 frames
ROPE_SCALE = (4 / world.FRAME_RATE, 16, 16)


def new_autoencoder() -> AutoencoderKLLTXVideo:
    """Returns an autoencoder from clips [B, 3, 9, 32, 32] in [-1, 1] to latents [B, 16, 3, 2, 2].

    Patches of 4 x 4 pixels, then two halvings of time, height and width. It takes clips of one frame too.
    """
    autoencoder: AutoencoderKLLTXVideo = AutoencoderKLLTXVideo(
        latent_channels=NUM_CHANNELS,
        block_out_channels=(32, 32),
        decoder_block_out_channels=(32, 32),
        down_block_types=("LTXVideoDownBlock3D",) * 2,
        layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        spatio_temporal_scaling=(True, True),
        decoder_spatio_temporal_scaling=(True, True),
        decoder_inject_noise=(False,) * 3,
        downsample_type=("conv",) * 2,
        upsample_residual=(False,) * 2,
        upsample_factor=(1, 1),
        patch_size=4,
    )
    return autoencoder


def new_transformer() -> LTXVideoTransformer3DModel:
    """Returns a network of the velocity of packed latents [B, 12, 16], given text [B, 5, 64] and its mask."""
    transformer: LTXVideoTransformer3DModel = LTXVideoTransformer3DModel(
        in_channels=NUM_CHANNELS,
        out_channels=NUM_CHANNELS,
        num_attention_heads=3,
        attention_head_dim=32,
        cross_attention_dim=96,
        num_layers=3,
        caption_channels=TEXT_WIDTH,
    )
    return transformer


def new_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token for each word of the world, which ends each text with the end token."""
    words = ["<pad>", "</s>", "<unk>", *COLOURS, *SHAPES, "moves", *world.DIRECTIONS]
    tokenizer: Any = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=128,  # LTX-Video's; a shorter one makes transformers warn of longer texts
    )


def new_text_encoder(tokenizer: PreTrainedTokenizerFast) -> T5EncoderModel:
    """Returns a T5 encoder of one layer from tokens [B, 5] to states [B, 5, 64]."""
    return T5EncoderModel(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=TEXT_WIDTH,
            d_kv=16,
            d_ff=128,
            num_layers=1,
            num_heads=4,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=8,
            dropout_rate=0.0,
            pad_token_id=0,
            eos_token_id=1,
        )
    )


def encode_text(
    text_encoder: T5EncoderModel, tokenizer: PreTrainedTokenizerFast, prompts: list[str]
) -> tuple[Tensor, Tensor]:
    """Returns states [B, 5, 64] and mask [B, 5] as LTXPipeline.encode_prompt makes them, with gradients."""
    tokens = tokenizer(
        prompts, padding="max_length", truncation=True, max_length=MAX_SEQUENCE_LENGTH, return_tensors="pt"
    )
    return text_encoder(tokens.input_ids)[0], tokens.attention_mask


def velocity(transformer: Any, latents: Tensor, sigma: Tensor, text: tuple[Tensor, Tensor]) -> Tensor:
    """Returns `noise - clean` [B, 12, 16] at noise levels [B], with the arguments that the pipeline gives.

    Args:
        text: states [B, 5, 64] and mask [B, 5].
    """
    states, mask = text
    predicted: Tensor = transformer(
        latents, states, 1000 * sigma, mask, *GRID, rope_interpolation_scale=ROPE_SCALE
    ).sample
    return predicted


def sample(transformer: Any, text: tuple[Tensor, Tensor], noise: Tensor, num_steps: int) -> Tensor:
    """Samples packed latents from noise [B, 12, 16] by Euler's method on uniform sigmas, those of the pipeline."""
    latents, sigmas = noise, torch.linspace(1, 0, num_steps + 1)
    for sigma, next_sigma in itertools.pairwise(sigmas):
        latents = latents + (next_sigma - sigma) * velocity(transformer, latents, sigma.expand(len(noise)), text)
    return latents


def to_latents(autoencoder: Any, clips: Tensor) -> Tensor:
    """Returns packed latents [B, 12, 16], of mean 0 and deviation 1, of clips [B, 9, 3, 32, 32] in [0, 1]."""
    latents = autoencoder.encode(2 * clips.transpose(1, 2) - 1).latent_dist.mean.flatten(2).transpose(1, 2)
    normalised: Tensor = (latents - autoencoder.latents_mean) / autoencoder.latents_std
    return normalised


def to_clips(autoencoder: Any, latents: Tensor) -> Tensor:
    """Returns clips [B, 9, 3, 32, 32], about in [0, 1], of packed latents [B, 12, 16]; 64 clips at a time."""
    unpacked = (latents * autoencoder.latents_std + autoencoder.latents_mean).transpose(1, 2).unflatten(2, GRID)
    decoded = torch.cat([autoencoder.decode(part).sample for part in unpacked.split(64)])
    return decoded.transpose(1, 2) / 2 + 0.5
