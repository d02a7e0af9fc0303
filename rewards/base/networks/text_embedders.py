"""A frozen text encoder of sentence-transformers, and a random small twin."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mmrl.core.contracts import ConfigError

from .tiny import byte_tokenizer, randomise

# "model": what its folder says, or where it says nothing "mean" ("last" of a causal language model)
Pooling = Literal["model", "mean", "cls", "last"]
MAX_TOKENS = 4096  # of a text, whatever the model allows: two texts are compared token by token
_BATCH = 32  # texts encoded at once


@dataclass(frozen=True)
class Embedder:
    """A frozen text encoder: texts to embeddings of length 1, in float32 whatever the run's precision."""

    model: Any  # a SentenceTransformer
    context: int  # tokens of a text, with its special ones

    def fits(self, text: str) -> bool:
        """Returns whether the model reads the whole text, and there is something to read."""
        return 0 < len(self.model.tokenizer(_readable(text), verbose=False)["input_ids"]) <= self.context

    def sentences(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Returns the embedding [D] of each different text; all of them must fit."""
        unique = sorted(set(texts))
        settings = {"batch_size": _BATCH, "show_progress_bar": False, "convert_to_tensor": True}
        with torch.autocast(self.model.device.type, enabled=False):
            found = self.model.encode([*map(_readable, unique)], prompt="", normalize_embeddings=True, **settings)
        return dict(zip(unique, found, strict=True))

    @torch.no_grad()
    def tokens(self, text: str) -> Tensor:
        """Returns [K, D]: the rows of the model's table of token embeddings for a text, without special tokens."""
        ids = self.model.tokenizer(_readable(text), add_special_tokens=False)["input_ids"]
        table = self.model[0].model.get_input_embeddings().weight
        return normalize(table[torch.tensor(ids, dtype=torch.int64, device=table.device)], dim=-1)


def _readable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair is no text for a tokenizer


def load_embedder(model: str, pooling: Pooling, device: torch.device) -> Embedder:
    """Loads an encoder by hub name or folder; code of its own is never run.

    Raises ConfigError without sentence-transformers, or where the encoder is missing, damaged, or no transformer.
    """
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Transformer
        from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
    except ModuleNotFoundError as error:
        raise ConfigError(
            "embeddings of texts need the package sentence-transformers: `pip install 'mmrl[embeddings]'`"
        ) from error
    marks = {"split_special_tokens": True}  # marks of the model's own in an answer are text
    settings: dict[str, Any] = {"device": str(device), "trust_remote_code": False, "processor_kwargs": marks}
    try:
        encoder: Any = SentenceTransformer(model, model_kwargs={"dtype": torch.float32}, **settings)
    except (OSError, ValueError, KeyError, ImportError, AttributeError, TypeError) as error:  # none; one not whole
        raise ConfigError(
            f"cannot load the text encoder {model!r}: {shorten(str(error), 300)}; allowed are a hub name (owner/name)"
            " or a folder that sentence-transformers or transformers saved"
        ) from error
    if not isinstance(encoder[0], Transformer) or "text" not in encoder[0].modality_config:
        raise ConfigError(f"{model!r} begins with {type(encoder[0]).__name__}; allowed is a Transformer of texts")
    encoder[0].modality_config = {"text": encoder[0].modality_config["text"]}  # else a chat template frames each text
    if pooling != "model":
        mode = "lasttoken" if pooling == "last" else pooling
        pooled = PoolingModule(encoder[0].get_embedding_dimension(), mode)
        encoder = SentenceTransformer(modules=[encoder[0], pooled], device=str(device))
    context = min(encoder.max_seq_length or MAX_TOKENS, MAX_TOKENS)
    return Embedder(encoder.eval().requires_grad_(False), context)


def write_tiny_embedder(folder: Path, seed: int) -> None:
    """Writes a BERT of random weights, of which sentence-transformers takes the mean over tokens."""
    from transformers import BertConfig, BertModel

    tokenizer = byte_tokenizer(["<pad>", "<eos>"], eos="<eos>", pad="<pad>")
    tokenizer.model_max_length = 256
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(config)
    randomise(model, torch.Generator().manual_seed(seed))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
