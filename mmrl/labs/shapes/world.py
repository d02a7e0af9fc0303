"""A world of one coloured shape on a dark 32x32 canvas: its prompts, its renderer, and a verifier that reads pixels."""

import difflib
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

SIZE = 32  # pixels, height and width
BACKGROUND = 0.08
COLOURS = {
    "red": (0.90, 0.15, 0.15),
    "green": (0.15, 0.75, 0.20),
    "blue": (0.20, 0.35, 0.95),
    "yellow": (0.95, 0.85, 0.15),
    "purple": (0.65, 0.20, 0.80),
    "white": (0.92, 0.92, 0.92),
}
SHAPES = ("circle", "square", "triangle", "cross")
ROWS = ("top", "middle", "bottom")
COLUMNS = ("left", "centre", "right")
CELL_CENTRES = (8.5, 16.0, 23.5)  # pixels, the same for rows and columns
NUM_PROMPTS = len(COLOURS) * len(SHAPES) * len(ROWS) * len(COLUMNS)  # 216
RADII = (4.0, 5.0)  # pixels: the circle of the same area as the shape has a radius between these
JITTER = 0.8  # pixels, each way from the centre of the cell

Split = Literal["train", "held_out"]


@dataclass(frozen=True)
class Attributes:
    """The attributes of B prompts."""

    colour: Tensor  # [B] index into COLOURS
    shape: Tensor  # [B] index into SHAPES
    cell: Tensor  # [B] 3 * row + column

    @property
    def prompt_index(self) -> Tensor:
        """The index [B] of each prompt in `all_prompts()`."""
        return (self.colour * len(SHAPES) + self.shape) * 9 + self.cell


@dataclass(frozen=True)
class Verdict:
    """The verifier's verdict on B images, compared with B prompts."""

    colour: Tensor  # [B] graded in [0, 1]
    shape: Tensor  # [B] graded in [0, 1]
    position: Tensor  # [B] graded in [0, 1]
    is_correct: Tensor  # [B] bool: all three attributes exact, and the drawing is clean

    @property
    def graded(self) -> Tensor:
        """The mean [B] of the three graded scores, in [0, 1]."""
        return (self.colour + self.shape + self.position) / 3


def all_prompts() -> list[str]:
    """Returns the 216 prompts of the world, such as "red circle top left"; the last word changes fastest."""
    return list(_prompt_indices())


def prompts(split: Split) -> list[str]:
    """Returns the 144 prompts for RL or the 72 held-out prompts, in the order of `all_prompts()`.

    A prompt is held out where colour + shape + row + column (as indices) is divisible by 3: every word is in both
    splits equally often, and any three of the four words of a held-out prompt occur together in prompts for RL.
    """
    if split not in get_args(Split):
        raise ValueError(f"no split {split!r}; the splits are {', '.join(get_args(Split))}")
    everything = all_prompts()
    wanted = attributes(everything)
    total = wanted.colour + wanted.shape + wanted.cell // 3 + wanted.cell % 3
    is_held_out = (total % 3 == 0).tolist()
    return [prompt for prompt, held in zip(everything, is_held_out, strict=True) if held == (split == "held_out")]


def attributes(prompts: Sequence[str]) -> Attributes:
    """Parses B prompts. Raises ValueError for a prompt that is not in the grammar."""
    known = _prompt_indices()
    unknown = [prompt for prompt in prompts if prompt not in known]
    if unknown:
        nearest = difflib.get_close_matches(unknown[0][:100], known, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"no such prompt {unknown[0]!r} (did you mean {nearest!r}?); a prompt is 'colour shape row column' with"
            f" colour one of {', '.join(COLOURS)}; shape one of {', '.join(SHAPES)}; row one of {', '.join(ROWS)};"
            f" column one of {', '.join(COLUMNS)}"
        )
    return attributes_at(torch.tensor([known[prompt] for prompt in prompts], dtype=torch.long))


def attributes_at(prompt_index: Tensor) -> Attributes:
    """Returns the attributes of the prompts with the indices [B] in `all_prompts()`."""
    return Attributes(colour=prompt_index // 36, shape=prompt_index // 9 % 4, cell=prompt_index % 9)


def render(prompts: Sequence[str], generator: torch.Generator) -> Tensor:
    """Draws images [B, 3, 32, 32] in [0, 1] that fit B prompts, with random size and place from a CPU generator."""
    wanted = attributes(prompts)
    centres, palette = torch.tensor(CELL_CENTRES), torch.tensor(list(COLOURS.values()))
    noise = torch.rand(3, len(prompts), generator=generator)
    x = centres[wanted.cell % 3] + JITTER * (2 * noise[0] - 1)
    y = centres[wanted.cell // 3] + JITTER * (2 * noise[1] - 1)
    radius = RADII[0] + (RADII[1] - RADII[0]) * noise[2]
    mask = coverage(x, y, radius)[torch.arange(len(prompts)), wanted.shape][:, None]  # [B, 1, H, W]
    return BACKGROUND + mask * (palette[wanted.colour][:, :, None, None] - BACKGROUND)


def coverage(x: Tensor, y: Tensor, radius: Tensor) -> Tensor:
    """Returns soft masks [B, 4, H, W] of the four shapes with area pi * radius^2, centroid (x, y) in pixels."""
    grid = torch.arange(SIZE, dtype=torch.float32, device=x.device) + 0.5
    dx = grid[None, None, :] - x[:, None, None]  # [B, 1, W]
    dy = grid[None, :, None] - y[:, None, None]  # [B, H, 1]
    ax, ay, r = dx.abs(), dy.abs(), radius[:, None, None]
    width = r * math.sqrt(math.pi / 20)  # half the width of an arm; five squares of side 2 * width make the cross
    length = 3 * width
    distance = torch.stack(
        [
            (dx.square() + dy.square()).sqrt() - r,
            torch.maximum(ax, ay) - r * (math.sqrt(math.pi) / 2),
            torch.maximum(dy, math.sqrt(0.75) * ax - 0.5 * dy) - 0.7776 * r,  # sqrt(pi / sqrt(27)) = 0.7776: inradius
            torch.minimum(torch.maximum(ax - length, ay - width), torch.maximum(ax - width, ay - length)),
        ],
        dim=1,
    )  # [B, 4, H, W], pixels, negative inside
    return (0.5 - distance).clamp_(0, 1)


def verify(images: Tensor, prompts: Sequence[str]) -> Verdict:
    """Reads colour, shape and place off B images and holds them against B prompts.

    An image without a shape of sensible size (20 to 160 pixels) scores 0 throughout.

    Args:
        images: [B, 3, 32, 32] in [0, 1], RGB, any device; what lies outside [0, 1] is clamped.
        prompts: B prompts of the grammar.

    Raises:
        ValueError: a prompt does not parse, the images have another shape or count, or they are not finite.
    """
    if images.shape != (len(prompts), 3, SIZE, SIZE):
        wanted_shape = [len(prompts), 3, SIZE, SIZE]
        raise ValueError(f"images have shape {list(images.shape)}; {len(prompts)} prompts need {wanted_shape}")
    images = images.float()
    if not images.isfinite().all():
        raise ValueError("images hold NaN or infinity; allowed are numbers in [0, 1]")
    images = images.clamp(0, 1)
    wanted = attributes(prompts)
    lift = (images - BACKGROUND).abs().amax(dim=1)  # [B, H, W]
    mask = ((lift - 0.12) / 0.25).clamp(0, 1)  # [B, H, W]
    area = mask.sum(dim=(1, 2))  # [B]
    x, y = _centroid(mask, area)
    colour, is_colour = _judge_colour(images, lift, wanted.colour.to(images.device))
    shape, is_shape = _judge_shape(mask, area, x, y, wanted.shape.to(images.device))
    position, is_position = _judge_position(x, y, wanted.cell.to(images.device))
    is_drawn = (area > 20) & (area < 160)
    return Verdict(
        colour=colour * is_drawn,
        shape=shape * is_drawn,
        position=position * is_drawn,
        is_correct=is_drawn & is_colour & is_shape & is_position,
    )


def _centroid(mask: Tensor, area: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the centroids, x and y in pixels, each [B], of masks [B, H, W] with areas [B]; 0 for an empty mask."""
    grid = torch.arange(SIZE, dtype=torch.float32, device=mask.device) + 0.5
    divisor = area.clamp(min=1e-6)
    return (mask.sum(1) * grid).sum(1) / divisor, (mask.sum(2) * grid).sum(1) / divisor


def _judge_colour(images: Tensor, lift: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Returns score [B] and is_exact [B] of the mean colour of the flat inside; edges mix with the background."""
    core = (lift > 0.35) * lift  # [B, H, W]
    seen = (images * core[:, None]).sum(dim=(2, 3)) / core.sum(dim=(1, 2)).clamp(min=1e-6)[:, None]  # [B, 3]
    palette = torch.tensor(list(COLOURS.values()), device=images.device)
    distance = (seen[:, None] - palette).norm(dim=-1)  # [B, 6]
    asked = distance.gather(1, wanted[:, None]).squeeze(1)  # [B]
    return torch.exp(-(asked / 0.30).square()), (distance.argmin(1) == wanted) & (asked < 0.3)


def _judge_shape(mask: Tensor, area: Tensor, x: Tensor, y: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Returns score [B] and is_exact [B] by the IoU with each of the four shapes of equal area and centroid."""
    templates = coverage(x, y, (area.clamp(20, 160) / math.pi).sqrt())  # [B, 4, H, W]
    drawn = mask[:, None]
    overlap = torch.minimum(drawn, templates).sum((2, 3)) / torch.maximum(drawn, templates).sum((2, 3))  # [B, 4]
    asked = overlap.gather(1, wanted[:, None]).squeeze(1)  # [B]
    score = torch.softmax(overlap / 0.05, dim=1).gather(1, wanted[:, None]).squeeze(1)
    return score, (overlap.argmax(1) == wanted) & (asked > 0.7)


def _judge_position(x: Tensor, y: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Returns score [B] and is_exact [B] by the larger distance, of x or y, in pixels, to the centre of the cell."""
    centres = torch.tensor(CELL_CENTRES, device=x.device)
    miss = torch.maximum((x - centres[wanted % 3]).abs(), (y - centres[wanted // 3]).abs())
    return torch.exp(-(miss / 5.0).square()), miss < 2.5


@functools.cache
def _prompt_indices() -> dict[str, int]:
    """Returns the index of each prompt in `all_prompts()`."""
    words = itertools.product(COLOURS, SHAPES, ROWS, COLUMNS)
    return {" ".join(chosen): index for index, chosen in enumerate(words)}
