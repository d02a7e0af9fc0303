"""Parts of tiny twins: random weights that tell inputs apart, and a tokenizer that reads any text."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


@torch.no_grad()
def randomise(module: nn.Module, generator: torch.Generator) -> None:
    """Samples every weight anew so that signals keep their size.

    With the libraries' own, small weights outputs hardly depend on inputs, and a test of a twin would see next to
    nothing.
    """
    for name, parameter in module.named_parameters():
        if parameter.ndim == 0:
            continue  # a temperature: the library's own
        if name.endswith("bias") or parameter.ndim < 2:
            is_scale = name.endswith(("weight", "lambda1"))  # of a norm, or of a layer: around 1
            parameter.normal_(float(is_scale), 0.1, generator=generator)
        elif ("embedding" in name and "patch" not in name) or min(parameter.shape[:2]) == 1:
            parameter.normal_(0.0, 1.0, generator=generator)  # looked up or added, not multiplied with
        else:
            parameter.normal_(0.0, 1 / parameter[0].numel() ** 0.5, generator=generator)


def byte_tokenizer(special: Sequence[str], *, eos: str, pad: str, words: Sequence[str] = ()) -> Any:
    """Returns a fast tokenizer of transformers with a token for each byte, so that no text is unknown.

    Args:
        special: marks that are one token each, `eos` and `pad` among them.
        words: of text, that are one token each where they stand alone.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in special])
    tokenizer.add_tokens([AddedToken(word, normalized=False, single_word=True) for word in words])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=eos, pad_token=pad, extra_special_tokens=list(special)
    )
