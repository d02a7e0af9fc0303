"""A frozen language model that gives the likelihood of one text after another, and a random small twin."""

from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError

from .tiny import byte_tokenizer, randomise


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model of transformers, in float32 whatever the run's precision."""

    tokenizer: Any
    model: Any

    @torch.no_grad()
    def mean_log_prob(self, question: str, thought: str, answer: str, *, max_tokens: int) -> float | None:
        """Returns the mean log-probability of the answer's tokens after the question and the thought.

        The question is a user's message in the model's chat template, where it has one, else a line of its own. Of what
        comes before the answer the last tokens count where all are more than `max_tokens`. None for an answer without
        tokens, or that is longer than that itself. The parts become tokens apart from each other, so that the answer's
        tokens are known.
        """
        prompt = self._ids(self._as_chat(question, max_tokens), split_special_tokens=False)
        before = prompt + self._ids(_last(thought, max_tokens))
        after = self._ids(answer) if len(answer) <= 20 * max_tokens else []
        room = max_tokens - len(after)
        if not after or not before or room < 1:
            return None
        before = before[-room:]
        ids = torch.tensor([before + after], device=self.model.device)
        with torch.autocast(self.model.device.type, enabled=False):
            logits: Tensor = self.model(input_ids=ids, logits_to_keep=len(after) + 1).logits[0, :-1]  # [K, V]
            log_prob = logits.float().log_softmax(-1).gather(1, ids[0, -len(after) :, None])
        return float(log_prob.mean())

    def _as_chat(self, question: str, max_tokens: int) -> str:
        question = _last(question, max_tokens)
        if self.tokenizer.chat_template is None:
            return f"{question}\n"
        message = [{"role": "user", "content": question}]
        chat: str = self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return chat

    def _ids(self, text: str, *, split_special_tokens: bool = True) -> list[int]:
        """Returns the tokens of a text; marks of the model are plain text in an answer, and marks in the template."""
        readable = text.encode("utf-8", "replace").decode()  # half a surrogate pair is no text for a tokenizer
        ids: list[int] = self.tokenizer(readable, add_special_tokens=False, split_special_tokens=split_special_tokens)[
            "input_ids"
        ]
        return ids


def _last(text: str, max_tokens: int) -> str:
    """Returns the end of a text, more letters than `max_tokens` tokens have: this bounds the time of the tokenizer."""
    return text[-20 * max_tokens :]


def load_language_model(model: str, device: torch.device) -> LanguageModel:
    """Loads a causal language model by hub name or folder; ConfigError where there is none."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
        network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    except (OSError, ValueError, KeyError, ImportError) as error:  # no such model; one of another kind; no class
        raise ConfigError(
            f"cannot load the language model {model!r}: {shorten(str(error), 300)}; allowed are a hub name"
            " (owner/name) or a folder that transformers saved, of a causal language model"
        ) from error
    return LanguageModel(tokenizer, network.to(device).eval().requires_grad_(False))


def write_tiny_language_model(folder: Path, seed: int) -> None:
    """Writes a Llama of random weights and small sizes, one token for each byte."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer(["<pad>", "<eos>"], eos="<eos>", pad="<pad>")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    randomise(model, torch.Generator().manual_seed(seed))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
