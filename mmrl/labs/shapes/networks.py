"""The networks and tokenizers of the lab, a Stable Diffusion 3 in miniature, with random weights."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer

from mmrl.labs.shapes import world

LATENT_SHAPE = (4, 4, 4)  # channels, height, width
NUM_CLIP_TOKENS = 6  # start, colour, shape, row, column, end
MAX_SEQUENCE_LENGTH = 1  # the T5 tokens that the pipeline appends; without a T5 they are zeros
CLIP_WIDTHS = (32, 48)  # of text_encoder and text_encoder_2
TEXT_WIDTH = 96  # the width of a T5 token, to which the pipeline pads the two CLIPs


def new_autoencoder() -> AutoencoderKL:
    """Returns an autoencoder from images [B, 3, 32, 32] in [-1, 1] to latents [B, 4, 4, 4]."""
    autoencoder: AutoencoderKL = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 32, 32, 64),
        layers_per_block=1,
        latent_channels=LATENT_SHAPE[0],
        norm_num_groups=4,
        sample_size=world.SIZE,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    return autoencoder


def new_transformer() -> SD3Transformer2DModel:
    """Returns a network of the velocity of latents [B, 4, 4, 4], given text [B, L, 96] and pooled text [B, 80]."""
    transformer: SD3Transformer2DModel = SD3Transformer2DModel(
        sample_size=LATENT_SHAPE[1],
        patch_size=1,
        in_channels=LATENT_SHAPE[0],
        out_channels=LATENT_SHAPE[0],
        num_layers=3,
        attention_head_dim=32,
        num_attention_heads=3,
        joint_attention_dim=TEXT_WIDTH,
        caption_projection_dim=96,
        pooled_projection_dim=sum(CLIP_WIDTHS),
        pos_embed_max_size=LATENT_SHAPE[1],
        qk_norm="rms_norm",
    )
    return transformer


def new_tokenizer() -> CLIPTokenizer:
    """Returns a CLIP tokenizer with one token for each word of the world; any other word is split into letters."""
    return word_tokenizer([*world.COLOURS, *world.SHAPES, *world.ROWS, *world.COLUMNS], NUM_CLIP_TOKENS)


def word_tokenizer(words: Sequence[str], num_tokens: int) -> CLIPTokenizer:
    """Returns a CLIP tokenizer with one token for each word, for texts of at most `num_tokens` with start and end."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    merges = _merges(words)
    pieces = [*letters, *(letter + "</w>" for letter in letters), *dict.fromkeys(a + b for a, b in merges)]
    # start and end come last, as in CLIP: transformers reads an eos_token_id of 2 as "the largest id of the prompt"
    tokens = [*pieces, "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs: Any = merges  # transformers' annotation says text, its tokenizer takes pairs
    return CLIPTokenizer(vocabulary, pairs, model_max_length=num_tokens)


def _merges(words: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the byte-pair merges, in their order, that make each word one token."""
    merges: list[tuple[str, str]] = []
    for word in words:
        pieces = [*word[:-1], word[-1] + "</w>"]
        for pair in merges:  # what the merges of earlier words, which take precedence, make of this word
            pieces = _apply_merge(pieces, pair)
        while len(pieces) > 1:
            merges.append((pieces[0], pieces[1]))
            pieces = _apply_merge(pieces, merges[-1])
    return merges


def _apply_merge(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """Joins each occurrence of a pair of neighbors, from the left."""
    joined: list[str] = []
    for piece in pieces:
        if joined and (joined[-1], piece) == pair:
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def new_text_encoder(width: int, tokenizer: CLIPTokenizer) -> CLIPTextModelWithProjection:
    """Returns a network from tokens [B, 6] to hidden states [B, 6, width] and a pooled state [B, width].

    Two layers, because the pipeline reads the hidden states before the last layer and the pooled output after it.
    """
    return CLIPTextModelWithProjection(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=2,
            num_attention_heads=width // 16,
            max_position_embeddings=NUM_CLIP_TOKENS,
            projection_dim=width,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def encode_tokens(
    tokens: Tensor, text_encoder: CLIPTextModelWithProjection, text_encoder_2: CLIPTextModelWithProjection
) -> tuple[Tensor, Tensor]:
    """Returns the result of StableDiffusion3Pipeline.encode_prompt without a T5, with gradients.

    Args:
        tokens: [B, 6], of both tokenizers (they are equal).

    Returns:
        prompt_embeds [B, 6 + MAX_SEQUENCE_LENGTH, 96] and pooled_prompt_embeds [B, 80].
    """
    first = text_encoder(tokens, output_hidden_states=True)
    second = text_encoder_2(tokens, output_hidden_states=True)
    clips = torch.cat([first.hidden_states[-2], second.hidden_states[-2]], dim=-1)  # [B, 6, 80]
    embeds = F.pad(clips, (0, TEXT_WIDTH - clips.shape[-1], 0, MAX_SEQUENCE_LENGTH))  # [B, 7, 96]
    return embeds, torch.cat([first.text_embeds, second.text_embeds], dim=-1)
