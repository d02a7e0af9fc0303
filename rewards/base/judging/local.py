"""A judge that transformers runs here: it writes its reply, or says how likely each of some first words is."""

from collections.abc import Sequence
from textwrap import shorten
from typing import Any, Literal

import torch

from mmrl.core.contracts import ConfigError, Placement

from ..networks.vlm import Vlm, load_vlm
from .questions import Question, Reply, UnansweredError
from .settings import JudgeModel


class LocalJudge:
    """A frozen model with a chat template, of images and text or of text alone."""

    def __init__(self, settings: JudgeModel, placement: Placement, *, sees_images: bool, at_once: int) -> None:
        """Loads the model in the precision of the run; raises ConfigError where it cannot be loaded.

        Args:
            settings: the judge. placement: where it runs.
            sees_images: whether its questions hold images. at_once: questions in one batch.
        """
        self._settings, self._at_once = settings, at_once
        self._vlm = (load_vlm if sees_images else load_text_model)(settings.model, placement)
        self._tokenizer = self._vlm.tokenizer

    @torch.no_grad()
    def ask(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
        """Returns the reply to each question, or why there is none that counts."""
        replies: list[Reply | UnansweredError] = []
        for start in range(0, len(questions), self._at_once):
            part, own = questions[start : start + self._at_once], seeds[start : start + self._at_once]
            replies += self._first_words(part) if part[0].words else self._written(part, own)
        return replies

    def _first_words(self, questions: Sequence[Question]) -> list[Reply | UnansweredError]:
        """Returns the log-probs of the first words; a word is all tokens that spell it, whatever their capitals."""
        inputs = self._inputs(questions, "right")
        log_probs = self._vlm.next_log_probs(inputs)  # [B, V]
        replies: list[Reply | UnansweredError] = []
        for row, (question, length) in enumerate(zip(questions, inputs["attention_mask"].sum(1).tolist(), strict=True)):
            values = [float(log_probs[row, self._tokens_of(word)].logsumexp(0)) for word in question.words]
            replies.append(Reply("", tuple(values), prompt_tokens=length, reply_tokens=1))
        return replies

    def _tokens_of(self, word: str) -> list[int]:
        """Returns the tokens that spell a word alone. Raises ConfigError where this model has none."""
        tokens = self._vlm.spellings(word)
        if not tokens:
            raise ConfigError(f"the word {word!r} must be one token of the judge {self._settings.model!r}, and is none")
        return tokens

    def _written(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
        """Returns what the judge writes. Each question is sampled by its own seed where the temperature is above 0."""
        if self._settings.temperature > 0 and len(questions) > 1:
            alone = zip(questions, seeds, strict=True)
            return [reply for question, seed in alone for reply in self._written([question], [seed])]
        inputs = self._inputs(questions, "left")
        length = inputs["input_ids"].shape[1]
        options: dict[str, Any] = {"do_sample": False}
        if self._settings.temperature > 0:
            options = {"do_sample": True, "temperature": self._settings.temperature, "top_k": 0, "top_p": 1.0}
        device = self._vlm.model.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seeds[0])
            made = self._vlm.model.generate(**inputs, max_new_tokens=self._settings.max_tokens, **options)
        replies: list[Reply | UnansweredError] = []
        ends = _ends(self._vlm.model, self._tokenizer)
        for row, tokens in enumerate(made[:, length:].tolist()):
            stop = next((place for place, token in enumerate(tokens) if token in ends), None)
            if stop is None:
                replies.append(UnansweredError("the reply was cut at max_tokens"))
            else:
                text = self._tokenizer.decode(tokens[:stop], skip_special_tokens=True)
                replies.append(Reply(text, None, int(inputs["attention_mask"][row].sum()), len(tokens[:stop]) + 1))
        return replies

    def _inputs(self, questions: Sequence[Question], side: Literal["left", "right"]) -> Any:
        """Returns the padded inputs of some questions on the model's device."""
        chats, images = [self._chat(question) for question in questions], [question.images for question in questions]
        return self._vlm.inputs(chats, images, side)

    def _chat(self, question: Question) -> list[dict[str, Any]]:
        def content(text: str, num_images: int) -> Any:
            parts = [{"type": "image"}] * num_images + [{"type": "text", "text": text}]
            return parts if self._vlm.sees_images else text

        system = [{"role": "system", "content": content(question.system, 0)}] if question.system else []
        return [*system, {"role": "user", "content": content(question.text, len(question.images))}]


def load_text_model(model: str, placement: Placement) -> Vlm:
    """Loads a language model by hub name or folder, its tokenizer in the place of the processor.

    Raises ConfigError where there is none, or it has no chat template.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(model)
        network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=placement.dtype)
    # what transformers raises for a model that is not there, is of another kind or is damaged
    except (OSError, ValueError, ImportError, KeyError, TypeError, RuntimeError) as error:
        raise ConfigError(
            f"cannot load the language model {model!r}: {shorten(str(error), 300)}; allowed are a hub name (owner/name)"
            " or a folder of a causal language model of transformers"
        ) from error
    if tokenizer.chat_template is None:
        raise ConfigError(f"{model!r} has no chat template; give a model that is tuned to follow instructions")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return Vlm(network.to(placement.device).eval().requires_grad_(False), tokenizer, sees_images=False)


def _ends(model: Any, tokenizer: Any) -> set[int]:
    """Returns the tokens at which a reply ends."""
    ends = model.generation_config.eos_token_id
    several = ends if isinstance(ends, list) else [ends]
    return {token for token in (*several, tokenizer.eos_token_id) if token is not None}
