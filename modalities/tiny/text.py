"""Language halves of tiny twins: a tokenizer that reads any text, chat templates, sizes, random weights."""

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import PreTrainedTokenizerFast

_WORDS = "the of click box on in left right above red green blue yellow answer think user assistant system what is"
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_HIDDEN, _HEADS, _LAYERS = 32, 4, 2  # of the language model; a head has 8 channels


def build_tokenizer(
    special: Sequence[str], *, eos: str, pad: str, bos: str | None = None, named: dict[str, str] | None = None
) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE tokenizer: lossless on any text, a few words are one token.

    `named`: special tokens by their role.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}| ?\p{L}+|\s|."), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(special),
        show_progress=False,
    )
    words = _WORDS.split()
    bpe.train_from_iterator([word for word in [*words, *(f" {word}" for word in words)] for _ in range(3)], trainer)
    bpe.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in ("<think>", "</think>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=eos,
        pad_token=pad,
        bos_token=bos,
        extra_special_tokens=list(special),
        model_specific_special_tokens=named or {},
        padding_side="left",
    )


def chat_template(turn: str, end: str, answer: str, image: str, before: str = "", video: str = "") -> str:
    """Returns a chat template: `turn` and `answer` open a turn (`ROLE` stands for the role), `end` closes it."""
    opening = turn.replace("ROLE", "{{ message['role'] }}")
    return (
        before + "{% for message in messages %}" + opening + "{% if message['content'] is string %}"
        "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
        + image
        + ("{% elif part['type'] == 'video' %}" + video if video else "")
        + "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
        + end
        + "{% endfor %}{% if add_generation_prompt %}"
        + answer
        + "{% endif %}"
    )


def chatml_tokenizer(*media: str, **settings: Any) -> Any:
    """Returns a tokenizer with the turns of ChatML and the tokens of media."""
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *media)
    return build_tokenizer(special, eos="<|im_end|>", pad="<|endoftext|>", **settings)


def chatml_template(image: str) -> str:
    """Returns the chat template of ChatML."""
    return chat_template("<|im_start|>ROLE\n", "<|im_end|>\n", "<|im_start|>assistant\n", image, video="<video>\n")


def text_sizes(tokenizer: Any, **more: Any) -> dict[str, Any]:
    """Returns the settings of a small language model: grouped queries, untied head, a vocabulary of a round size."""
    return {
        "vocab_size": (len(tokenizer) + 15) // 16 * 16,
        "hidden_size": _HIDDEN,
        "intermediate_size": 2 * _HIDDEN,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": 2,
        "head_dim": _HIDDEN // _HEADS,
        "max_position_embeddings": 2**15,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **more,
    }


@torch.no_grad()
def randomise(module: nn.Module, generator: torch.Generator) -> None:
    """Samples every weight anew so that signals keep their size; some of the library's own weights are 0 or 0.02."""
    embeddings = {
        id(child.weight): float(getattr(child, "embed_scale", 1.0))  # Gemma multiplies them when it reads
        for child in module.modules()
        if isinstance(child, nn.Embedding)
    }
    for name, parameter in module.named_parameters():
        if name.endswith("bias") or parameter.ndim < 2:
            is_scale = name.endswith("weight")  # of a norm: around 1
            parameter.normal_(float(is_scale), 0.1, generator=generator)
        else:
            is_stack = parameter.ndim == 3 and "expert" in name  # of matrices
            fan_in = parameter.shape[1] if is_stack else parameter[0].numel()
            scale = embeddings.get(id(parameter), fan_in**0.5)
            parameter.normal_(0.0, 1 / scale, generator=generator)
