"""A world of requests: what the shapes lab draws, asked for in words that its generator has never seen.

A request names colour, shape, row and column, each by one of two other words: "crimson disc upper west" asks for what
the shapes lab calls "red circle top left". A policy has to write the prompt that makes the generator draw it.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmrl.labs import check_split
from mmrl.labs.shapes import world as shapes

# The two other words of each word of the shapes lab, in the order of its prompts: colour, shape, row, column.
COLOURS = {
    "red": ("crimson", "scarlet"),
    "green": ("emerald", "lime"),
    "blue": ("azure", "navy"),
    "yellow": ("golden", "amber"),
    "purple": ("violet", "mauve"),
    "white": ("ivory", "snowy"),
}
SHAPES = {
    "circle": ("disc", "ball"),
    "square": ("box", "tile"),
    "triangle": ("pyramid", "wedge"),
    "cross": ("plus", "crossing"),
}
ROWS = {"top": ("upper", "high"), "middle": ("level", "midway"), "bottom": ("lower", "low")}
COLUMNS = {"left": ("west", "port"), "centre": ("inner", "halfway"), "right": ("east", "starboard")}
KINDS: tuple[Mapping[str, tuple[str, str]], ...] = (COLOURS, SHAPES, ROWS, COLUMNS)
NUM_WAYS = 2 ** len(KINDS)  # 16 requests ask for the same
SPLITS = ("train", "held_out", "shuffled")
PER_PROMPT = {"train": 4, "held_out": 2}  # requests for each prompt of the shapes lab in the split


@dataclass(frozen=True)
class Request:
    """A request that `mmrl.prompts.stream` turns into a prompt."""

    text: str
    target: dict[str, Any]  # answer: the prompt of the shapes lab


def request(prompt: str, way: int) -> str:
    """Returns a prompt of the shapes lab in other words; the bits of `way`, from 0 to 15, choose between the two.

    Raises ValueError for another way, and for a prompt that the shapes lab does not have.
    """
    shapes.attributes([prompt])
    if not 0 <= way < NUM_WAYS:
        raise ValueError(f"way must be from 0 to {NUM_WAYS - 1}, got {way}")
    words = zip(KINDS, prompt.split(), strict=True)
    return " ".join(kind[word][way >> place & 1] for place, (kind, word) in enumerate(words))


def prompts(split: str) -> list[Request]:
    """Returns 576 requests for what the shapes lab trains on (`train`), or 144 for what it holds out (`held_out`).

    So no held-out combination of colour, shape, row and column is asked for in training, and every word is in both.
    `shuffled` has the training requests with each other's answers: the control, which must teach nothing.
    Raises ValueError for another split.
    """
    check_split(split, SPLITS)
    if split == "shuffled":
        requests = prompts("train")
        answers = [one.target for one in requests]
        random.Random(0).shuffle(answers)
        return [replace(one, target=answer) for one, answer in zip(requests, answers, strict=True)]
    count, known = PER_PROMPT[split], shapes.prompts("train" if split == "train" else "held_out")
    return [
        Request(request(prompt, (5 * number + 3 + place * NUM_WAYS // count) % NUM_WAYS), {"answer": prompt})
        for number, prompt in enumerate(known)
        for place in range(count)
    ]


def words_of(kinds: Sequence[Mapping[str, tuple[str, str]]] = KINDS) -> list[str]:
    """Returns all words of requests, kind by kind."""
    return [word for kind in kinds for pair in kind.values() for word in pair]
