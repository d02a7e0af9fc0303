"""Parts of tiny twins of text-to-image pipelines: a small CLIP, and random weights without zeros."""

import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

WORDS = "a photo of the and in on with red green blue yellow black white circle square triangle left right above below"


def clip_tokenizer(pad_token: str) -> CLIPTokenizer:
    """Returns a byte-level BPE tokenizer in the order of CLIP's own vocabulary, so that no text has unknown tokens."""
    # ByteLevel.alphabet() comes in no fixed order; sorted, "!" has token 0 as in CLIP, which pads with it.
    letters = sorted(ByteLevel.alphabet())
    tokens = letters + [letter + "</w>" for letter in letters]
    merges: dict[tuple[str, str], None] = {}  # a dict keeps the order and drops the second "bl" of "blue black"
    for word in WORDS.split():
        left, *rest = (*word[:-1], word[-1] + "</w>")
        for right in rest:
            merges[left, right] = None
            left += right
    tokens += dict.fromkeys(left + right for left, right in merges)
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[*merges],  # pairs, though annotated as text
        pad_token=pad_token,
        model_max_length=77,
    )


def clip_encoder(tokenizer: CLIPTokenizer, width: int, activation: str) -> CLIPTextModelWithProjection:
    """Returns a small CLIP text encoder with projection, `width` channels wide."""
    return CLIPTextModelWithProjection(_config(tokenizer, width, activation))


def clip_encoder_without_projection(tokenizer: CLIPTokenizer, width: int, activation: str) -> CLIPTextModel:
    """Returns a small CLIP text encoder without projection, `width` channels wide."""
    return CLIPTextModel(_config(tokenizer, width, activation))


def _config(tokenizer: CLIPTokenizer, width: int, activation: str) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_act=activation,
        max_position_embeddings=tokenizer.model_max_length,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,  # the pooled embedding is read at the first of these
    )


@torch.no_grad()
def randomise(module: nn.Module, generator: torch.Generator) -> None:
    """Samples every weight anew so that signals keep their size; some of the libraries' own weights are 0 or 0.02."""
    embeddings = {id(child.weight) for child in module.modules() if isinstance(child, nn.Embedding)}
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            parameter.normal_(0.0, 0.1, generator=generator)
        elif parameter.ndim >= 2:  # a norm's scale has one axis and stays 1
            fan_in = 1 if id(parameter) in embeddings else parameter[0].numel()
            parameter.normal_(0.0, fan_in**-0.5, generator=generator)
