"""A frozen text encoder in the layout of sentence-transformers, loaded with transformers alone, and a random small
twin.
"""

import json
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

Pooling = Literal["model", "mean", "cls", "last"]  # "model": what its folder says
MAX_TOKENS = 4096  # of a text, whatever the model allows: two texts are compared token by token
_BATCH = 32  # texts encoded at once
_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}


@dataclass(frozen=True)
class Embedder:
    """A frozen text encoder: texts to embeddings of length 1, in float32 whatever the run's precision."""

    tokenizer: Any
    model: Any
    pooling: Pooling  # never "model"
    context: int  # tokens of a text, with its special ones

    def fits(self, text: str) -> bool:
        """Returns whether the model reads the whole text, and there is something to read."""
        return 0 < len(self._tokens([text])["input_ids"][0]) <= self.context

    @torch.no_grad()
    def sentences(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Returns the embedding [D] of each different text; all of them must fit."""
        unique = sorted(set(texts), key=lambda text: (len(text), text))  # little padding, whatever their order
        parts = [self._pooled(unique[start : start + _BATCH]) for start in range(0, len(unique), _BATCH)]
        return dict(zip(unique, torch.cat(parts), strict=True)) if unique else {}

    @torch.no_grad()
    def tokens(self, text: str) -> Tensor:
        """Returns [K, D]: the rows of the model's table of token embeddings for a text, without special tokens."""
        ids = self._tokens([text], add_special_tokens=False)["input_ids"][0]
        table = self.model.get_input_embeddings().weight
        return normalize(table[torch.tensor(ids, dtype=torch.int64, device=table.device)], dim=-1)

    def _pooled(self, texts: list[str]) -> Tensor:
        inputs = self.tokenizer.pad(self._tokens(texts), padding_side="right", return_tensors="pt")
        inputs = inputs.to(self.model.device)
        with torch.autocast(self.model.device.type, enabled=False):
            hidden: Tensor = self.model(**inputs).last_hidden_state  # [B, K, D]
            mask = inputs["attention_mask"][..., None].to(hidden.dtype)
            if self.pooling == "mean":
                return normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
            last = inputs["attention_mask"].sum(1) - 1
            place = last if self.pooling == "last" else torch.zeros_like(last)
            return normalize(hidden[torch.arange(len(texts)), place], dim=-1)

    def _tokens(self, texts: list[str], **settings: Any) -> Any:
        # Half a surrogate pair is no text for a tokenizer; marks of the model's own in an answer are text.
        readable = [text.encode("utf-8", "replace").decode() for text in texts]
        return self.tokenizer(readable, split_special_tokens=True, **settings)


def load_embedder(model: str, pooling: Pooling, device: torch.device) -> Embedder:
    """Loads an encoder by hub name or folder. Raises ConfigError where there is none, or where it has other modules."""
    from transformers import AutoModel, AutoTokenizer

    folder, own_pooling = _layout(model)
    if pooling == "model":
        if own_pooling is None:
            raise ConfigError(f"{model!r} does not say how its tokens are pooled: set pooling to mean, cls or last")
        pooling = own_pooling
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, subfolder=folder)
        encoder: Any = AutoModel.from_pretrained(model, subfolder=folder, dtype=torch.float32)
    except (OSError, ValueError, KeyError, ImportError) as error:  # no such model; one that is not whole; no class
        raise ConfigError(
            f"cannot load the text encoder {model!r}: {shorten(str(error), 300)}; allowed are a hub name (owner/name)"
            " or a folder that sentence-transformers or transformers saved"
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # never seen: it is masked
    settings = _json(model, f"{folder}/sentence_bert_config.json".lstrip("/"))
    limit = settings.get("max_seq_length") if isinstance(settings, dict) else None
    places = getattr(encoder.config, "max_position_embeddings", MAX_TOKENS)
    context = min(limit or MAX_TOKENS, tokenizer.model_max_length, places, MAX_TOKENS)
    return Embedder(tokenizer, encoder.to(device).eval().requires_grad_(False), pooling, context)


def _layout(model: str) -> tuple[str, Pooling | None]:
    """Reads `modules.json` of a model: the folder of its encoder, and how its tokens are pooled."""
    modules = _json(model, "modules.json")
    if modules is None:
        return "", None
    folder, pooling = "", None
    for module in modules:
        kind, path = module["type"].rpartition(".")[2], module["path"]
        if kind == "Transformer":
            folder = path
        elif kind == "Pooling":
            pooling = _pooling(model, _json(model, f"{path}/config.json"))
        elif kind != "Normalize":  # all embeddings are normalised here
            raise ConfigError(f"{model!r} has a module {kind}; allowed are Transformer, Pooling and Normalize")
    return folder, pooling


def _pooling(model: str, settings: Any) -> Pooling:
    chosen = {name for name, value in (settings or {}).items() if name.startswith("pooling_mode_") and value is True}
    if len(chosen) != 1 or not chosen <= _MODES.keys():
        raise ConfigError(f"{model!r} pools by {', '.join(sorted(chosen)) or 'nothing'}; allowed is one of {[*_MODES]}")
    return _MODES[chosen.pop()]  # type: ignore[return-value]  # the values above


def _json(model: str, name: str) -> Any:
    """Reads a JSON file of a model; None where there is none.

    Raises ConfigError where that cannot be known, or the file cannot be read.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import RemoteEntryNotFoundError

    path = Path(model) / name
    try:
        if not Path(model).is_dir():
            path = Path(hf_hub_download(model, name))
        return json.loads(path.read_text()) if path.exists() else None
    except RemoteEntryNotFoundError:
        return None
    except (OSError, ValueError) as error:  # no network, no such model; no JSON, no name of a model
        if isinstance(error, FileNotFoundError) and try_to_load_from_cache(model, name) is not None:
            return None  # there was none when the network was there
        raise ConfigError(f"cannot read {name} of the text encoder {model!r}: {shorten(str(error), 300)}") from error


def write_tiny_embedder(folder: Path, seed: int) -> None:
    """Writes a BERT of random weights with mean pooling, as sentence-transformers saves one."""
    from transformers import BertConfig, BertModel

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer(["<pad>", "<eos>"], eos="<eos>", pad="<pad>")
    tokenizer.model_max_length = 512
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
    kind = "sentence_transformers.models"
    modules = [{"path": "", "type": f"{kind}.Transformer"}, {"path": "1_Pooling", "type": f"{kind}.Pooling"}]
    _write(folder / "modules.json", modules)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": 256, "do_lower_case": False})
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))
