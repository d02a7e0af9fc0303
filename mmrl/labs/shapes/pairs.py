"""Pairs of drawings of the lab: one that fits its prompt, and one with a wrong colour, shape or cell."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL.Image import Image, fromarray

from mmrl.labs.shapes import world

NUM_PAIRS = 4  # of each prompt
ATTRIBUTES = {"colour": len(world.COLOURS), "shape": len(world.SHAPES), "cell": 9}


@dataclass(frozen=True)
class Drawing:
    """An image of the world, drawn when it is loaded."""

    name: str  # what it shows
    seed: int
    size: tuple[int, int] = (world.SIZE, world.SIZE)

    def load(self) -> Image:
        generator = torch.Generator().manual_seed(self.seed)
        pixels = world.render([self.name], generator)[0].permute(1, 2, 0)  # [H, W, 3]
        return fromarray((255 * pixels).round().byte().numpy())


@dataclass(frozen=True)
class Pair:
    """A prompt and two drawings for it, the right one first."""

    text: str
    target: Mapping[str, Any] = field(default_factory=dict)


def pairs(split: world.Split) -> list[Pair]:
    """Returns `NUM_PAIRS` pairs for each prompt of a split; the number of a pair decides the wrong attribute.

    Raises ValueError for an unknown split.
    """
    everything, found = world.all_prompts(), []
    for number, text in enumerate(text for text in world.prompts(split) for _ in range(NUM_PAIRS)):
        generator = torch.Generator().manual_seed(number)
        name = list(ATTRIBUTES)[int(torch.randint(3, (), generator=generator))]
        right, count = world.attributes([text]), ATTRIBUTES[name]
        other = (getattr(right, name) + 1 + torch.randint(count - 1, (1,), generator=generator)) % count
        wrong = everything[int(replace(right, **{name: other}).prompt_index)]
        drawings = Drawing(text, 2 * number), Drawing(wrong, 2 * number + 1)
        found.append(Pair(text, {"given": drawings, "given_scores": (1.0, 0.0)}))
    return found
