"""A frozen model of natural language inference: does one text follow from another? And a random small twin."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch

from mmrl.core.contracts import ConfigError

from .tiny import byte_tokenizer, randomise

MAX_TOKENS = 4096  # of a pair, whatever the model allows
_BATCH = 32  # pairs judged at once
_LABEL = "entailment"


@dataclass(frozen=True)
class EntailmentModel:
    """A frozen classifier of pairs of texts, in float32 whatever the run's precision."""

    model: Any  # an AutoModelForSequenceClassification
    tokenizer: Any
    label: int  # the class that means "the second text follows from the first"
    context: int  # tokens of a pair, with its special ones

    def fits(self, first: str, second: str) -> bool:
        """Returns whether the model reads the whole pair."""
        return len(self._encoded([(first, second)])["input_ids"][0]) <= self.context

    @torch.no_grad()
    def entails(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Returns for each pair whether entailment is the likeliest class; all of them must fit."""
        found: list[bool] = []
        for start in range(0, len(pairs), _BATCH):
            encoded = self._encoded(pairs[start : start + _BATCH])
            inputs = self.tokenizer.pad(encoded, padding=True, return_tensors="pt").to(self.model.device)
            with torch.autocast(self.model.device.type, enabled=False):
                logits = self.model(**inputs).logits  # [n, classes]
            found += (logits.argmax(1) == self.label).tolist()
        return found

    def _encoded(self, pairs: Sequence[tuple[str, str]]) -> Any:
        readable = [[text.encode("utf-8", "replace").decode() for text in pair] for pair in pairs]
        firsts, seconds = [pair[0] for pair in readable], [pair[1] for pair in readable]
        # special tokens that an answer spells out are text
        return self.tokenizer(firsts, seconds, split_special_tokens=True, verbose=False)


def load_entailment_model(model: str, device: torch.device) -> EntailmentModel:
    """Loads a classifier by hub name or folder; code of its own is never run.

    Raises ConfigError where it is missing, damaged, or has no class named entailment.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(model)
        network: Any = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32)
    except (OSError, ValueError, KeyError, ImportError, AttributeError, TypeError) as error:  # none; one not whole
        raise ConfigError(
            f"cannot load the entailment model {model!r}: {shorten(str(error), 300)}; allowed are a hub name "
            "(owner/name) or a folder that transformers saved"
        ) from error
    labels = {name.lower(): number for number, name in network.config.id2label.items()}
    if _LABEL not in labels:
        raise ConfigError(
            f"{model!r} must have a class named {_LABEL}, as models of natural language inference have; its classes "
            f"are {', '.join(labels)}"
        )
    limits = (tokenizer.model_max_length, network.config.max_position_embeddings, MAX_TOKENS)
    return EntailmentModel(network.to(device).eval().requires_grad_(False), tokenizer, labels[_LABEL], min(limits))


def write_tiny_entailment_model(folder: Path, seed: int) -> None:
    """Writes a DeBERTa of random weights, which takes pairs by bytes."""
    from tokenizers.processors import TemplateProcessing
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    marks = ["<pad>", "<cls>", "<sep>"]
    tokenizer = byte_tokenizer(marks, eos="<sep>", pad="<pad>")
    tokenizer.model_max_length = 512
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<cls> $A <sep>",
        pair="<cls> $A <sep> $B:1 <sep>:1",
        special_tokens=[(mark, tokenizer.convert_tokens_to_ids(mark)) for mark in marks[1:]],
    )
    config = DebertaV2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        type_vocab_size=0,
        relative_attention=True,
        position_buckets=32,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        pad_token_id=tokenizer.pad_token_id,
        id2label={0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"},
        label2id={"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DebertaV2ForSequenceClassification(config)
    randomise(model, torch.Generator().manual_seed(seed))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
