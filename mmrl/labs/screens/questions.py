"""Questions about screens to train the language model on, with answers that may be wrong on purpose."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from mmrl.labs.screens import networks, world

PER_SCREEN = 6  # questions about each screen of a step
BLUR = 1.0  # pixels: a coordinate's label is a bell around it, so that 33 is nearly right where 34 is
END_OF_IMAGE = "<|vision_end|>"


@dataclass(frozen=True)
class Noise:
    """Errors of the training labels, in sides of the element."""

    wrong: float = 0.0  # share of labels that belong to another element of the screen
    jitter: float = 0.05  # standard deviation, each coordinate by itself
    shift: float = 0.0  # the same for all: right and down


@dataclass(frozen=True)
class Batch:
    """B questions with their answers, right-padded, without the image that the questions of a screen share."""

    elements: list[world.Element]  # B, those that are meant
    tokens: Tensor  # [B, T]
    is_label: Tensor  # [B, T] bool: the answer and its end token
    last: Tensor  # [B] place of the last token before the answer


def questions(
    processor: Any, screens: Sequence[world.Screen], noise: dict[world.Task, Noise], rng: random.Random
) -> Batch:
    """Returns questions about each screen, half clicks and half boxes; the questions of one screen are neighbors."""
    elements, asked, answers = [], [], []
    for screen in screens:
        for number in range(PER_SCREEN):
            task: world.Task = get_args(world.Task)[number % 2]
            element = rng.choice(screen.elements)
            elements.append(element)
            asked.append(prompt_text(processor, world.ask(element, task)).partition(END_OF_IMAGE)[2])
            answers.append(noisy_answer(screen, element, task, noise[task], rng) + processor.tokenizer.eos_token)
    return padded(processor, elements, asked, answers)


def padded(processor: Any, elements: list[world.Element], asked: list[str], answers: list[str]) -> Batch:
    """Returns questions, as the texts after the image, with their answers, in tokens."""
    before, after = processor.tokenizer(asked)["input_ids"], processor.tokenizer(answers)["input_ids"]
    length = max(len(b) + len(a) for b, a in zip(before, after, strict=True))
    tokens = torch.full((len(elements), length), processor.tokenizer.pad_token_id)
    is_label = torch.zeros(len(elements), length, dtype=torch.bool)
    for row, (b, a) in enumerate(zip(before, after, strict=True)):
        tokens[row, : len(b) + len(a)] = torch.tensor(b + a)
        is_label[row, len(b) : len(b) + len(a)] = True
    return Batch(elements, tokens, is_label, torch.tensor([len(b) - 1 for b in before]))


def noisy_answer(
    screen: world.Screen, element: world.Element, task: world.Task, noise: Noise, rng: random.Random
) -> str:
    """Returns the answer about the element, or about another, off by jitter and shift."""
    others = [other for other in screen.elements if other is not element]
    if others and rng.random() < noise.wrong:
        element = rng.choice(others)
    x1, y1, x2, y2 = element.box
    sides = (x2 - x1, y2 - y1) * 2
    errors = [(noise.shift + noise.jitter * rng.gauss(0, 1)) * side for side in sides]
    if task == "click":
        return world.click_answer((x1 + x2) / 2 + errors[0], (y1 + y2) / 2 + errors[1])
    return world.box_answer((x1 + errors[0], y1 + errors[1], x2 + errors[2], y2 + errors[3]))


def prompt_text(processor: Any, text: str) -> str:
    """Returns the chat of one screen and one question, up to the start of the assistant's answer."""
    content = [{"type": "image"}, {"type": "text", "text": text}]
    chat: str = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return chat


def shared_head(processor: Any) -> Tensor:
    """Returns the tokens [1, L] of the chat through the image, the same for every question."""
    text = prompt_text(processor, "").partition(END_OF_IMAGE)[0] + END_OF_IMAGE
    text = text.replace(processor.image_token, processor.image_token * networks.NUM_IMAGE_TOKENS)
    tokens: Tensor = processor.tokenizer(text, return_tensors="pt")["input_ids"]
    return tokens


def soft_labels(num_tokens: int, processor: Any) -> Tensor:
    """Returns label distributions [V, V] of the tokens: one-hot, but a bell of sd BLUR around a number."""
    return bells(num_tokens, processor.tokenizer.convert_tokens_to_ids(networks.number_words()), BLUR)


def bells(num_tokens: int, ordered: Sequence[int], blur: float) -> Tensor:
    """Returns label distributions [V, V]: one-hot, but a bell of sd `blur` over the neighbors in `ordered`."""
    labels = torch.eye(num_tokens)
    ids = torch.tensor(ordered)
    places = torch.arange(len(ids), dtype=torch.float32)
    labels[ids[:, None], ids] = torch.softmax(-(places[:, None] - places).square() / (2 * blur**2), dim=1)
    return labels
