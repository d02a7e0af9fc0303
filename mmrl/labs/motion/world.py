"""A world of one coloured shape that moves over a dark canvas: its prompts, its renderer, and a verifier of pixels."""

import difflib
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmrl.labs import check_split
from mmrl.labs.shapes.world import BACKGROUND, COLOURS, SHAPES, SIZE, coverage

NUM_FRAMES = 9
FRAME_RATE = 8  # frames per second
DIRECTIONS = {"right": (1.0, 0.0), "left": (-1.0, 0.0), "up": (0.0, -1.0), "down": (0.0, 1.0)}  # x, y; y points down
NUM_PROMPTS = len(COLOURS) * len(SHAPES) * len(DIRECTIONS)  # 96
TRAVEL = 12.0  # pixels from the first frame to the last
RADIUS = 5.3  # pixels, of the circle of the same area as the shape
JITTER = {"along": 1.0, "across": 3.5, "travel": 1.0, "radius": 0.4}  # pixels, each way
AREAS = (30.0, 200.0)  # pixels of a shape of sensible size
SPLITS = ("train", "held_out")

Split = Literal["train", "held_out"]


@dataclass(frozen=True)
class Attributes:
    """The attributes of B prompts."""

    colour: Tensor  # [B] index into COLOURS
    shape: Tensor  # [B] index into SHAPES
    direction: Tensor  # [B] index into DIRECTIONS

    @property
    def prompt_index(self) -> Tensor:
        """The index [B] of each prompt in `all_prompts()`."""
        return (self.colour * len(SHAPES) + self.shape) * len(DIRECTIONS) + self.direction


@dataclass(frozen=True)
class Verdict:
    """The verifier's verdict on B clips, compared with B prompts."""

    colour: Tensor  # [B] graded in [0, 1]
    shape: Tensor  # [B] graded in [0, 1]
    motion: Tensor  # [B] graded in [0, 1]
    is_correct: Tensor  # [B] bool: all three attributes exact, and each frame is clean

    @property
    def graded(self) -> Tensor:
        """The mean [B] of the three graded scores, in [0, 1]."""
        return (self.colour + self.shape + self.motion) / 3


def all_prompts() -> list[str]:
    """Returns the 96 prompts of the world, such as "red circle moves right"; the last word changes fastest."""
    return list(_prompt_indices())


def prompts(split: Split) -> list[str]:
    """Returns the 64 prompts for RL or the 32 held-out prompts, in the order of `all_prompts()`.

    A prompt is held out where colour + shape + direction (as indices) is divisible by 3: every word is in both splits,
    and any two of colour, shape and direction of a held-out prompt occur together in prompts for RL. Raises ValueError
    for an unknown split.
    """
    check_split(split, SPLITS)
    everything = all_prompts()
    wanted = attributes(everything)
    is_held_out = ((wanted.colour + wanted.shape + wanted.direction) % 3 == 0).tolist()
    return [prompt for prompt, held in zip(everything, is_held_out, strict=True) if held == (split == "held_out")]


def attributes(prompts: Sequence[str]) -> Attributes:
    """Parses B prompts. Raises ValueError for a prompt that is not in the grammar."""
    known = _prompt_indices()
    unknown = [prompt for prompt in prompts if prompt not in known]
    if unknown:
        nearest = difflib.get_close_matches(unknown[0][:100], known, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"no such prompt {unknown[0]!r} (did you mean {nearest!r}?); a prompt is 'colour shape moves direction'"
            f" with colour one of {', '.join(COLOURS)}; shape one of {', '.join(SHAPES)}; direction one of"
            f" {', '.join(DIRECTIONS)}"
        )
    return attributes_at(torch.tensor([known[prompt] for prompt in prompts], dtype=torch.long))


def attributes_at(prompt_index: Tensor) -> Attributes:
    """Returns the attributes of the prompts with the indices [B] in `all_prompts()`."""
    return Attributes(colour=prompt_index // 16, shape=prompt_index // 4 % 4, direction=prompt_index % 4)


def render(prompts: Sequence[str], generator: torch.Generator) -> Tensor:
    """Draws clips [B, 9, 3, 32, 32] in [0, 1] that fit B prompts, with random size, place and speed."""
    jitter = 2 * torch.rand(4, len(prompts), generator=generator) - 1
    return _rendered(attributes(prompts), jitter, _phase().expand(len(prompts), -1))


def render_stills(prompts: Sequence[str], generator: torch.Generator) -> Tensor:
    """Draws clips of one frame [B, 1, 3, 32, 32] in [0, 1]: a random moment of a clip that fits."""
    jitter = 2 * torch.rand(4, len(prompts), generator=generator) - 1
    return _rendered(attributes(prompts), jitter, torch.rand(len(prompts), 1, generator=generator) - 0.5)


def _rendered(wanted: Attributes, jitter: Tensor, phase: Tensor) -> Tensor:
    """Draws the frames [B, F, 3, H, W] of B clips.

    Args:
        jitter: [4, B] in [-1, 1], in the order of `JITTER`.
        phase: [B, F] in [-0.5, 0.5], from the first moment of a clip to the last.
    """
    along, across, extra, growth = jitter * torch.tensor(list(JITTER.values()))[:, None]
    heading = torch.tensor(list(DIRECTIONS.values()))[wanted.direction]  # [B, 2]
    path = along[:, None] + (TRAVEL + extra)[:, None] * phase  # [B, F]
    aside = across[:, None] * heading.flip(1).abs()  # [B, 2]
    centre = SIZE / 2 + path[..., None] * heading[:, None] + aside[:, None]  # [B, F, 2]
    num_frames = phase.shape[1]
    x, y = centre.flatten(0, 1).unbind(1)  # [BF]
    masks = coverage(x, y, (RADIUS + growth).repeat_interleave(num_frames))  # [BF, 4, H, W]
    shape = wanted.shape.repeat_interleave(num_frames)
    mask = masks[torch.arange(len(masks)), shape].view(-1, num_frames, 1, SIZE, SIZE)
    palette = torch.tensor(list(COLOURS.values()))
    return BACKGROUND + mask * (palette[wanted.colour][:, None, :, None, None] - BACKGROUND)


def verify(clips: Tensor, prompts: Sequence[str]) -> Verdict:
    """Reads colour, shape and motion off B clips and compares them with B prompts.

    A frame without a shape of sensible size (30 to 200 pixels) scores 0, and no clip with such a frame is correct.

    Args:
        clips: [B, 9, 3, 32, 32] in [0, 1], RGB, any device; values outside [0, 1] are clamped.
        prompts: B prompts of the grammar.

    Raises:
        ValueError: a prompt does not parse, the clips have another shape or count, or they are not finite.
    """
    wanted_shape = [len(prompts), NUM_FRAMES, 3, SIZE, SIZE]
    if list(clips.shape) != wanted_shape:
        raise ValueError(f"clips have shape {list(clips.shape)}; {len(prompts)} prompts need {wanted_shape}")
    clips = clips.float()
    if not clips.isfinite().all():
        raise ValueError("clips hold NaN or infinity; allowed are numbers in [0, 1]")
    clips = clips.clamp(0, 1)
    wanted = attributes(prompts)
    lift = (clips - BACKGROUND).abs().amax(dim=2)  # [B, F, H, W]
    mask = ((lift - 0.12) / 0.25).clamp(0, 1)  # [B, F, H, W]
    area = mask.sum(dim=(2, 3))  # [B, F]
    place = _centroids(mask, area)  # [B, F, 2]
    is_drawn = (area > AREAS[0]) & (area < AREAS[1])  # [B, F]
    colour, is_colour = _judge_colour(clips, lift, is_drawn, wanted.colour.to(clips.device))
    shape, is_shape = _judge_shape(mask, area, place, is_drawn, wanted.shape.to(clips.device))
    motion, is_motion = _judge_motion(place, is_drawn, wanted.direction.to(clips.device))
    is_clean = is_drawn.all(dim=1)
    return Verdict(colour, shape, motion, is_correct=is_clean & is_colour & is_shape & is_motion)


def _centroids(mask: Tensor, area: Tensor) -> Tensor:
    """Returns the centroids [B, F, 2], x and y in pixels, of masks [B, F, H, W]; 0 for an empty mask."""
    grid = torch.arange(SIZE, dtype=torch.float32, device=mask.device) + 0.5
    sums = torch.stack([(mask.sum(2) * grid).sum(2), (mask.sum(3) * grid).sum(2)], dim=-1)
    return sums / area.clamp(min=1e-6)[..., None]


def _judge_colour(clips: Tensor, lift: Tensor, is_drawn: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Returns score [B], the mean over frames, and is_exact [B], in all frames, of the mean colour of the inside."""
    core = (lift > 0.35) * lift  # [B, F, H, W]
    seen = (clips * core[:, :, None]).sum(dim=(3, 4)) / core.sum(dim=(2, 3)).clamp(min=1e-6)[..., None]  # [B, F, 3]
    palette = torch.tensor(list(COLOURS.values()), device=clips.device)
    distance = (seen[:, :, None] - palette).norm(dim=-1)  # [B, F, 6]
    asked = distance[torch.arange(len(wanted)), :, wanted]  # [B, F]
    score = (torch.exp(-(asked / 0.30).square()) * is_drawn).mean(dim=1)
    return score, ((distance.argmin(2) == wanted[:, None]) & (asked < 0.3)).all(dim=1)


def _judge_shape(mask: Tensor, area: Tensor, place: Tensor, is_drawn: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Returns score [B] and is_exact [B] by the mean IoU over frames with the shapes of equal area and centroid."""
    x, y = place.flatten(0, 1).unbind(1)
    templates = coverage(x, y, (area.flatten().clamp(*AREAS) / math.pi).sqrt())  # [BF, 4, H, W]
    drawn = mask.flatten(0, 1)[:, None]
    overlaps = torch.minimum(drawn, templates).sum((2, 3)) / torch.maximum(drawn, templates).sum((2, 3))  # [BF, 4]
    overlap = (overlaps.unflatten(0, area.shape) * is_drawn[..., None]).mean(dim=1)  # [B, 4]
    asked = overlap.gather(1, wanted[:, None]).squeeze(1)  # [B]
    likeness = torch.softmax(overlap / 0.05, dim=1).gather(1, wanted[:, None]).squeeze(1)
    return likeness * is_drawn.float().mean(dim=1), (overlap.argmax(1) == wanted) & (asked > 0.7)


def _judge_motion(place: Tensor, is_drawn: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Returns score [B] and is_exact [B] of the straight line through the centroids: its travel against that asked for.

    Exact is a travel within 4 pixels in x and in y, where no centroid is 1.5 pixels from the line's place at its frame.
    """
    phase = _phase().to(place.device)[:, None]  # [F, 1]
    travel = (place * phase).sum(1) / phase.square().sum()  # [B, 2], by least squares
    line = place.mean(1, keepdim=True) + phase * travel[:, None]  # [B, F, 2]
    bend = (place - line).norm(dim=-1).amax(1)  # [B]
    miss = travel - TRAVEL * torch.tensor(list(DIRECTIONS.values()), device=place.device)[wanted]  # [B, 2]
    score = torch.exp(-(miss.norm(dim=-1) / 8).square()) * is_drawn.float().mean(dim=1)
    return score, (miss.abs().amax(1) < 4.0) & (bend < 1.5)


def _phase() -> Tensor:
    """Returns the phases [9] of a clip's frames, from -0.5 to 0.5."""
    return torch.linspace(-0.5, 0.5, NUM_FRAMES)


@functools.cache
def _prompt_indices() -> dict[str, int]:
    """Returns the index of each prompt in `all_prompts()`."""
    words = itertools.product(COLOURS, SHAPES, ("moves",), DIRECTIONS)
    return {" ".join(chosen): index for index, chosen in enumerate(words)}
