"""A frozen vision-language model that answers a question about images in one token, and a random small twin."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt

from .resizing import check_finite
from .tiny import byte_tokenizer, randomise

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_MARK = "<image>"  # where an image stands in a prompt
SIDE, PATCH = 32, 8  # of the images that a tiny twin sees, in pixels
TEMPLATE = (
    "{% for message in messages %}USER: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)


@dataclass(frozen=True)
class Vlm:
    """A frozen image-text-to-text model of transformers and its processor.

    Questions are padded on the right: behind them, where a causal model does not see it, and no position moves.
    """

    model: Any
    processor: Any
    sees_images: bool = True  # False: a model of text alone, whose tokenizer stands in the place of the processor

    @property
    def tokenizer(self) -> Any:
        return self.processor.tokenizer if self.sees_images else self.processor

    def token(self, answer: str) -> int:
        """Returns the id of an answer that is one token; raises ConfigError for an answer of more tokens."""
        tokens = self.tokenizer.encode(answer, add_special_tokens=False)
        if len(tokens) != 1:
            raise ConfigError(
                f"the answer {answer!r} must be one token, got {len(tokens)} with this model's tokenizer; spaces before"
                " it and capitals count"
            )
        return int(tokens[0])

    def spellings(self, word: str) -> list[int]:
        """Returns the tokens that spell a word alone, with or without a space before it and whatever its capitals.

        There are none where every spelling takes several tokens.
        """
        spelt = {space + form for form in (word, word.lower(), word.capitalize(), word.upper()) for space in ("", " ")}
        found = [self.tokenizer.encode(form, add_special_tokens=False) for form in spelt]
        return sorted({one[0] for one in found if len(one) == 1})

    @torch.no_grad()
    def log_probs(self, images: "Sequence[Sequence[Image]]", questions: Sequence[str], tokens: Sequence[int]) -> Tensor:
        """Returns [B, n] float32: log-probs that the answers to B questions begin with each of n tokens.

        The images of a question stand before it, in their order. Raises ValueError where the processor cannot join
        images and questions, such as one with a mark for an image.
        """
        return self._first_log_probs(images, questions, "")[:, list(tokens)]

    @torch.no_grad()
    def word_log_probs(
        self,
        images: "Sequence[Sequence[Image]]",
        questions: Sequence[str],
        words: Sequence[Sequence[Sequence[int]]],
        *,
        start: str = "",
        at_once: int = 8,
    ) -> Tensor:
        """Returns [B, n] float32: log-probs of n words, of which each is any of several tokens.

        Args:
            images: those of each question. questions: B texts. words: for each question n lists of tokens.
            start: what the answer begins with; the words follow on it. at_once: questions in one forward pass.
        """
        rows: list[Tensor] = []
        for first in range(0, len(questions), at_once):
            part = slice(first, first + at_once)
            log_probs = self._first_log_probs(images[part], questions[part], start)  # [b, V]
            for row, own in zip(log_probs, words[part], strict=True):
                rows.append(torch.stack([row[list(tokens)].logsumexp(0) for tokens in own]))
        return torch.stack(rows).clamp_max(0)  # a sum of probabilities may round to more than 1

    def log_probs_of_each(
        self,
        images: "Sequence[Image]",
        questions: Sequence[Sequence[str]],
        words: Sequence[Sequence[Sequence[Sequence[int]]]],
        *,
        at_once: int,
    ) -> list[Tensor]:
        """Returns for each image [its questions, n] float32, as `word_log_probs`: of n words for each of its questions.

        The questions of all images stand in common batches.
        """
        log_probs = self.word_log_probs(
            [[image] for image, own in zip(images, questions, strict=True) for _ in own],
            [question for own in questions for question in own],
            [answers for own in words for answers in own],
            at_once=at_once,
        )
        return list(log_probs.split([len(own) for own in questions]))

    def _first_log_probs(self, images: "Sequence[Sequence[Image]]", questions: Sequence[str], start: str) -> Tensor:
        """Returns [B, V] float32: the log-probs of the token after `start` in the answers to B questions."""
        chats = [
            [{"role": "user", "content": [{"type": "image"}] * len(shown) + [{"type": "text", "text": question}]}]
            for shown, question in zip(images, questions, strict=True)
        ]
        return self.next_log_probs(self.inputs(chats, images, "right", [start] * len(chats)))

    @torch.no_grad()
    def reply_log_probs(
        self, chats: Sequence[Any], images: "Sequence[Sequence[Image]]", beginnings: Sequence[str], ends: Sequence[str]
    ) -> Tensor:
        """Returns [B] float32: log-probs that replies to B chats, which have begun so, go on with these ends.

        Each is a sum over the tokens of its end. Raises ValueError as `log_probs` does, and for an end without a token.
        """
        replies = [beginning + end for beginning, end in zip(beginnings, ends, strict=True)]
        counts = torch.tensor([self._num_tokens(*pair) for pair in zip(beginnings, replies, strict=True)])
        if not counts.all():
            raise ValueError(f"the end of a reply must have a token, got {ends[counts.tolist().index(0)]!r}")
        inputs = self.inputs(chats, images, "right", replies)
        tokens: Tensor = inputs["input_ids"]
        counts = counts.to(tokens.device)
        row = torch.arange(len(counts), device=tokens.device).repeat_interleave(counts)  # [N]
        number = torch.arange(len(row), device=tokens.device) - (counts.cumsum(0) - counts)[row]  # in its end
        place = (inputs["attention_mask"].sum(1) - counts)[row] + number
        found = self._log_probs_behind(inputs, row, place - 1).gather(1, tokens[row, place][:, None])[:, 0]
        return found.new_zeros(len(counts)).index_add(0, row, found)

    def _num_tokens(self, beginning: str, whole: str) -> int:
        """Returns how many tokens of a text are not those of its beginning; one may reach over its end."""
        first, second = (
            self.tokenizer(text, add_special_tokens=False)["input_ids"] if text else [] for text in (beginning, whole)
        )
        shared = 0
        while shared < min(len(first), len(second)) and first[shared] == second[shared]:
            shared += 1
        return len(second) - shared

    def inputs(
        self,
        chats: Sequence[Any],
        images: "Sequence[Sequence[Image]]",
        side: Literal["left", "right"],
        replies: Sequence[str] = (),
    ) -> Any:
        """Returns the inputs of B chats and their images on the model's device, padded on a side.

        `replies`: what the model has already said in each of them.
        """
        texts: list[str] = [
            self.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) + reply
            for chat, reply in zip(chats, replies or [""] * len(chats), strict=True)
        ]
        self.tokenizer.padding_side = side
        if not self.sees_images:
            return self.tokenizer(texts, **_options(self.tokenizer, texts)).to(self.model.device)
        return processed(self.processor, texts, images).to(self.model.device, self.model.dtype)

    @torch.no_grad()
    def next_log_probs(self, inputs: Any) -> Tensor:
        """Returns [B, V] float32: the log-probs of the token behind each input, which is padded on the right."""
        last = inputs["attention_mask"].sum(1) - 1  # [B]: the place before the answer
        return self._log_probs_behind(inputs, torch.arange(len(last), device=last.device), last)

    def _log_probs_behind(self, inputs: Any, row: Tensor, place: Tensor) -> Tensor:
        """Returns [N, V] float32: the log-probs of the tokens behind N places of the inputs, each in its row."""
        places, column = place.unique(return_inverse=True)
        with torch.autocast(self.model.device.type, enabled=False):
            if "logits_to_keep" in inspect.signature(self.model.forward).parameters:  # [B, L, V] may not fit
                logits = self.model(**inputs, use_cache=False, logits_to_keep=places).logits
            else:
                logits = self.model(**inputs, use_cache=False).logits[:, places]
        log_probs: Tensor = logits[row, column].float().log_softmax(-1)
        return log_probs


def processed(processor: Any, texts: Sequence[str], images: "Sequence[Sequence[Image]]") -> Any:
    """Returns a processor's inputs of B texts of its chat template with their images, padded as its tokenizer does."""
    shown = [list(own) for own in images] if any(images) else None
    return processor(text=list(texts), images=shown, **_options(processor.tokenizer, texts))


def _options(tokenizer: Any, texts: Sequence[str]) -> dict[str, Any]:
    start = tokenizer.bos_token
    is_opened = start is not None and texts[0].startswith(start)  # by the template; the tokenizer would again
    return {"padding": True, "add_special_tokens": not is_opened, "return_tensors": "pt"}


def chat_of(prompt: Prompt) -> list[dict[str, Any]]:
    """Returns a prompt as the conversation of a chat template, after its own system message.

    Its images stand at their marks, or before its text where there are not as many marks as images.
    """
    content: list[dict[str, Any]] = []
    parts = prompt.text.split(IMAGE_MARK)
    if len(parts) != len(prompt.media) + 1:
        content = [{"type": "image"}] * len(prompt.media)
        parts = ["".join(parts)]
    for number, part in enumerate(parts):
        content += [{"type": "image"}] * (number > 0) + [text_part(part)] * bool(part)
    system = [] if prompt.system is None else [{"role": "system", "content": [text_part(prompt.system)]}]
    return [*system, {"role": "user", "content": content}]


def text_part(text: str) -> dict[str, str]:
    """Returns a text as a part of a message."""
    return {"type": "text", "text": text}


def check_question(question: str) -> None:
    """Raises ValueError unless the question has a place for the prompt."""
    if "{prompt}" not in question:
        raise ValueError(f"question must hold {{prompt}}, where the prompt goes, got {question!r}")


def pictures(images: Tensor) -> "list[Image]":
    """Returns images [B, 3, H, W] in [0, 1] as pictures of 8 bits; raises ValueError for NaN or infinity."""
    from torchvision.transforms.v2.functional import to_pil_image

    check_finite(images)
    levels = (images.float() * 255).round().clamp(0, 255).to("cpu", torch.uint8)
    return [to_pil_image(level) for level in levels]


def load_vlm(model: str, placement: Placement) -> Vlm:
    """Loads a model by hub name or folder, in the precision of the run; raises ConfigError where there is none."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    try:
        processor: Any = AutoProcessor.from_pretrained(model)
        network: Any = AutoModelForImageTextToText.from_pretrained(model, dtype=placement.dtype)
    # what transformers raises for a model that is not there, is of another kind or is damaged
    except (OSError, ValueError, ImportError, KeyError, TypeError, RuntimeError) as error:
        raise ConfigError(
            f"cannot load the vision-language model {model!r}: {shorten(str(error), 300)}; allowed are a hub name"
            " (owner/name) or a folder of an image-text-to-text model of transformers"
        ) from error
    if getattr(processor, "chat_template", None) is None:
        raise ConfigError(f"{model!r} has no chat template; give a model that is tuned to follow instructions")
    return Vlm(network.to(placement.device).eval().requires_grad_(False), processor)


def write_tiny_vlm(folder: Path, seed: int, words: Sequence[str]) -> None:
    """Writes a random LLaVA as transformers saves one; each of `words` is one token."""
    from transformers import CLIPImageProcessor, LlavaProcessor

    tokenizer = byte_tokenizer(["<pad>", "</s>", "<image>"], eos="</s>", pad="<pad>", words=words)
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are drawn anew
        model = _tiny_llava(tokenizer)
    randomise(model, torch.Generator().manual_seed(seed))
    with torch.no_grad():  # surer of its answers than random weights are
        model.lm_head.weight.mul_(4)
    model.save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    LlavaProcessor(
        CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=size),
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    ).save_pretrained(folder)


def _tiny_llava(tokenizer: Any) -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    tower: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    ends: dict[str, Any] = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    return LlavaForConditionalGeneration(
        LlavaConfig(
            text_config=LlamaConfig(**tower, **ends, vocab_size=len(tokenizer), max_position_embeddings=4096),
            vision_config=CLIPVisionConfig(**tower, image_size=SIDE, patch_size=PATCH),
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            image_seq_length=(SIDE // PATCH) ** 2,
            tie_word_embeddings=False,
        )
    )
