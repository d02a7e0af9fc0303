"""Pairs of clips of the lab: one that fits its prompt, and one with a wrong colour, shape or direction."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mmrl.labs.motion import world
from mmrl.labs.shapes.world import COLOURS, SHAPES

NUM_PAIRS = 4  # of each prompt
ATTRIBUTES = {"colour": len(COLOURS), "shape": len(SHAPES), "direction": len(world.DIRECTIONS)}


@dataclass(frozen=True)
class RenderedClip:
    """A clip of the world, rendered when it is loaded."""

    name: str  # what it shows
    seed: int

    def load(self, sampling: Any) -> Any:
        """Returns the `Frames` of `mmrl.media.video` that a `FrameSampling` selects."""
        from mmrl.media.video import Frames

        pixels = world.render([self.name], torch.Generator().manual_seed(self.seed))[0]  # [F, 3, H, W]
        indices = sampling.indices(0, world.NUM_FRAMES - 1, float(world.FRAME_RATE))
        chosen = (255 * pixels[indices]).round().to(torch.uint8)
        return Frames(chosen, indices.double() / world.FRAME_RATE, indices, float(world.FRAME_RATE), world.NUM_FRAMES)


@dataclass(frozen=True)
class Pair:
    """A prompt and two clips for it, the right one first."""

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
        other = (vars(right)[name] + 1 + torch.randint(count - 1, (1,), generator=generator)) % count
        wrong = everything[int(replace(right, **{name: other}).prompt_index)]
        clips = RenderedClip(text, 2 * number), RenderedClip(wrong, 2 * number + 1)
        found.append(Pair(text, {"given": clips, "given_scores": (1.0, 0.0)}))
    return found
