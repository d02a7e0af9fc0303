"""The networks and tokenizers of the lab, a FLUX.1 Kontext in miniature, with random weights."""

from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.pipelines.flux.pipeline_flux_kontext import FluxKontextPipeline
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

from mmrl.labs.edits import world
from mmrl.labs.shapes.networks import word_tokenizer
from mmrl.labs.shapes.world import SIZE

LATENT_CHANNELS = 4
NUM_TOKENS = 16  # of a picture: 4 x 4, each a patch of 2 x 2 latents
TOKEN_WIDTH = 4 * LATENT_CHANNELS
NUM_WORDS = 5  # the T5's: four words and the end
CLIP_WIDTH, T5_WIDTH = 32, 64
# Arguments of the pipeline's call; without them it scales pictures to a megapixel and pads texts to 512 tokens.
CALL = {
    "height": SIZE,
    "width": SIZE,
    "max_area": SIZE**2,
    "_auto_resize": False,
    "max_sequence_length": NUM_WORDS,
}


def new_autoencoder() -> AutoencoderKL:
    """Returns an autoencoder from pictures [B, 3, 32, 32] in [-1, 1] to latents [B, 4, 8, 8]."""
    autoencoder: AutoencoderKL = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(16, 32, 32),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=4,
        sample_size=SIZE,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
    )
    return autoencoder


def new_pipeline(autoencoder: AutoencoderKL) -> FluxKontextPipeline:
    """Returns a pipeline with random weights but for the autoencoder; its noise levels are uniform."""
    clip, t5 = new_tokenizers()
    pipeline: Any = FluxKontextPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=autoencoder,
        text_encoder=new_clip(clip),
        tokenizer=clip,
        text_encoder_2=new_t5(t5),
        tokenizer_2=t5,
        transformer=new_transformer(),
    )
    return without_progress_bar(pipeline)


def without_progress_bar(pipeline: Any) -> FluxKontextPipeline:
    """Returns the pipeline itself, told to print nothing."""
    pipeline.set_progress_bar_config(disable=True)
    kontext: FluxKontextPipeline = pipeline
    return kontext


def new_transformer() -> FluxTransformer2DModel:
    """Returns a network of the velocity of tokens [B, 16, 16], given those of the source and the instruction."""
    transformer: FluxTransformer2DModel = FluxTransformer2DModel(
        patch_size=1,
        in_channels=TOKEN_WIDTH,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=32,
        num_attention_heads=3,
        joint_attention_dim=T5_WIDTH,
        pooled_projection_dim=CLIP_WIDTH,
        guidance_embeds=False,
        axes_dims_rope=(8, 12, 12),
    )
    return transformer


def new_tokenizers() -> tuple[CLIPTokenizer, T5Tokenizer]:
    """Returns tokenizers with one token for each word of the world; any other word is split into letters."""
    words = list(dict.fromkeys(word for edit in world.all_edits() for word in edit.text.split()))
    letters = [(chr(code), -9.0) for code in range(ord("a"), ord("z") + 1)]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -8.0), *(("▁" + word, -1.0) for word in words)]
    t5 = T5Tokenizer(vocab=[*pieces, *letters], extra_ids=0, model_max_length=NUM_WORDS)
    return word_tokenizer(words, NUM_WORDS + 1), t5


def new_clip(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    """Returns a network from tokens [B, 6] to a pooled state [B, 32]."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=CLIP_WIDTH,
            intermediate_size=2 * CLIP_WIDTH,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=NUM_WORDS + 1,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def new_t5(tokenizer: T5Tokenizer) -> T5EncoderModel:
    """Returns a network from tokens [B, 5] to hidden states [B, 5, 64]."""
    return T5EncoderModel(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=T5_WIDTH,
            d_kv=16,
            d_ff=2 * T5_WIDTH,
            num_layers=1,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            pad_token_id=0,
            eos_token_id=1,
        )
    )


def encode_instructions(pipeline: FluxKontextPipeline) -> tuple[Tensor, Tensor]:
    """Returns what `encode_prompt` returns for all 44 instructions, with gradients: [44, 5, 64], pooled [44, 32]."""
    parts: Any = pipeline
    texts, how = [edit.text for edit in world.all_edits()], {"padding": "max_length", "return_tensors": "pt"}
    embeds = parts.text_encoder_2(parts.tokenizer_2(texts, max_length=NUM_WORDS, **how).input_ids)[0]
    pooled = parts.text_encoder(parts.tokenizer(texts, max_length=NUM_WORDS + 1, **how).input_ids).pooler_output
    return embeds, pooled


@torch.no_grad()
def encode(autoencoder: Any, pictures: Tensor) -> Tensor:
    """Returns the tokens [B, 16, 16] of pictures [B, 3, 32, 32] in [0, 1], as the pipeline encodes a source."""
    latents = autoencoder.encode(2 * pictures - 1).latent_dist.mean
    latents = (latents - autoencoder.config.shift_factor) * autoencoder.config.scaling_factor
    tokens: Tensor = FluxKontextPipeline._pack_latents(latents, *latents.shape)
    return tokens


@torch.no_grad()
def decode(autoencoder: Any, tokens: Tensor) -> Tensor:
    """Returns the pictures [B, 3, 32, 32] in [0, 1] of tokens [B, 16, 16]."""
    latents = FluxKontextPipeline._unpack_latents(tokens, SIZE, SIZE, 4)
    latents = latents / autoencoder.config.scaling_factor + autoencoder.config.shift_factor
    pictures: Tensor = autoencoder.decode(latents).sample / 2 + 0.5
    return pictures.clamp(0, 1)


def velocities(
    transformer: Any, tokens: Tensor, source: Tensor, sigma: Tensor, text: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Calls the network as the pipeline does.

    Args:
        tokens: [B, 16, 16], noisy.
        source: [B, 16, 16], of the source pictures.
        sigma: [B] in [0, 1].
        text: hidden states [B, 5, 64] and pooled states [B, 32] of the instructions.

    Returns:
        The velocity `noise - clean` [B, 16, 16], and what stands at the tokens of the source, which the pipeline drops.
    """
    side = FluxKontextPipeline._prepare_latent_image_ids(1, 4, 4, "cpu", torch.float32)
    out = transformer(
        hidden_states=torch.cat([tokens, source], dim=1),
        timestep=sigma,
        pooled_projections=text[1],
        encoder_hidden_states=text[0],
        txt_ids=torch.zeros(NUM_WORDS, 3),
        img_ids=torch.cat([side, side + torch.tensor([1.0, 0, 0])]),
        return_dict=False,
    )[0]
    return out[:, :NUM_TOKENS], out[:, NUM_TOKENS:]
