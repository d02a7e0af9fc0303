"""A world of pictures with two shapes, one in each half: edits of one of them, source pictures, and a renderer.

An instruction names a shape by its form and asks for another colour, size or column. The form is in one half alone, so
the verifier can read each half by itself (`verifier.py`).
"""

import difflib
import functools
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from PIL import Image
from torch import Tensor

from mmrl.labs import check_split
from mmrl.labs.shapes.world import BACKGROUND, COLOURS, SIZE, coverage

Kind = Literal["colour", "size", "column"]

HALF = SIZE // 2  # pixels: the height of a half
FORMS = ("circle", "square", "triangle", "cross")
RADII = {"small": 3.4, "large": 4.8}  # pixels: of the circle of the same area
COLUMNS = {"left": 7.0, "centre": 16.0, "right": 25.0}  # pixels: the x of the centre
VALUES: dict[Kind, tuple[str, ...]] = {"colour": tuple(COLOURS), "size": tuple(RADII), "column": tuple(COLUMNS)}
KINDS = get_args(Kind)
JITTER = (0.25, 0.8, 0.5)  # pixels, each way: of radius, x, y
SPLITS = ("train", "held_out")
NUM_SOURCES = {"train": 64, "held_out": 20}  # for each instruction
FIRST_SEED = {"train": 0, "held_out": 1_000_000}  # of source pictures: one range for each use


@dataclass(frozen=True)
class Edit:
    """What an instruction asks for: the shape of a form gets another value."""

    form: str
    kind: Kind
    value: str

    @property
    def text(self) -> str:
        """The instruction: "make the circle red", "make the cross small", "move the square left"."""
        return f"{'move' if self.kind == 'column' else 'make'} the {self.form} {self.value}"


@dataclass(frozen=True)
class Shape:
    """A shape in its half of a picture."""

    form: str
    colour: str
    size: str
    column: str
    jitter: tuple[float, float, float]  # in [-1, 1]: of radius, x, y

    def value(self, kind: Kind) -> str:
        """Returns the colour, the size or the column."""
        return {"colour": self.colour, "size": self.size, "column": self.column}[kind]

    def with_value(self, kind: Kind, value: str) -> "Shape":
        """Returns the same shape with another colour, size or column; the jitter stays."""
        match kind:
            case "colour":
                return replace(self, colour=value)
            case "size":
                return replace(self, size=value)
            case "column":
                return replace(self, column=value)


@dataclass(frozen=True)
class Scene:
    """What a picture shows: two shapes of different forms."""

    shapes: tuple[Shape, Shape]  # in the upper half, in the lower half

    def edited(self, edit: Edit) -> "Scene":
        """Returns the scene after an edit of the shape with the edit's form."""
        upper, lower = (
            shape.with_value(edit.kind, edit.value) if shape.form == edit.form else shape for shape in self.shapes
        )
        return Scene((upper, lower))


@dataclass(frozen=True)
class SourcePicture:
    """The picture of a scene, which an instruction asks to edit; drawn when it is loaded."""

    scene: Scene

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return SIZE, SIZE

    def load(self) -> Image.Image:
        """Draws the picture as an RGB image of 32x32 pixels."""
        pixels = render([self.scene])[0].mul(255).round().byte()
        return Image.fromarray(pixels.permute(1, 2, 0).numpy())


@dataclass(frozen=True)
class Question:
    """An instruction with the picture that it is about, which `mmrl.prompts.stream` turns into a prompt."""

    text: str
    media: tuple[SourcePicture, ...]
    target: Mapping[str, Any] = field(default_factory=dict)  # empty: the verifier reads instruction and picture


def all_edits() -> list[Edit]:
    """Returns the 44 edits of the world; the value changes fastest."""
    return list(_edits_by_text().values())


def edits(split: str) -> list[Edit]:
    """Returns the 29 edits of `train` or the 15 of `held_out`. Raises ValueError for another split.

    An edit is held out where the indices of its form and its value add to a multiple of 3: every form and every value
    is in both splits.
    """
    check_split(split, SPLITS)
    places = itertools.product(range(len(FORMS)), range(sum(map(len, VALUES.values()))))
    is_held_out = [(form + value) % 3 == 0 for form, value in places]
    return [edit for edit, held in zip(all_edits(), is_held_out, strict=True) if held == (split == "held_out")]


def prompts(split: str) -> list[Question]:
    """Returns 1,856 questions of `train` or 300 of `held_out`: other instructions and other source pictures.

    Raises ValueError for another split.
    """
    asked = edits(split) * NUM_SOURCES[split] if split in SPLITS else edits(split)
    return [question(edit, FIRST_SEED[split] + number) for number, edit in enumerate(asked)]


def question(edit: Edit, seed: int) -> Question:
    """Returns an edit's instruction for the source picture of a seed."""
    return Question(edit.text, (SourcePicture(source(edit, random.Random(seed))),))


def source(edit: Edit, rng: random.Random) -> Scene:
    """Returns a random scene in which an edit has something to change."""
    named, other = rng.sample(FORMS, k=2)
    other = named if other == edit.form else other
    shapes = [_shape(edit.form, rng), _shape(other, rng)]
    values = [value for value in VALUES[edit.kind] if value != edit.value]
    shapes[0] = shapes[0].with_value(edit.kind, rng.choice(values))
    rng.shuffle(shapes)
    return Scene((shapes[0], shapes[1]))


def _shape(form: str, rng: random.Random) -> Shape:
    colour, size, column = (rng.choice(VALUES[kind]) for kind in KINDS)
    return Shape(form, colour, size, column, (rng.uniform(-1, 1), rng.uniform(-1, 1), rng.uniform(-1, 1)))


def parse(text: str) -> Edit:
    """Returns the edit that an instruction asks for. Raises ValueError for a text that is none of the 44."""
    known = _edits_by_text()
    if text not in known:
        nearest = difflib.get_close_matches(text[:100], known, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"no such instruction {text[:100]!r} (did you mean {nearest!r}?); an instruction is 'make the FORM VALUE' "
            f"or 'move the FORM COLUMN' with a form of {', '.join(FORMS)}; "
            + "; ".join(f"a {kind} of {', '.join(values)}" for kind, values in VALUES.items())
        )
    return known[text]


@functools.cache
def _edits_by_text() -> dict[str, Edit]:
    values = [(kind, value) for kind, names in VALUES.items() for value in names]
    made = [Edit(form, kind, value) for form, (kind, value) in itertools.product(FORMS, values)]
    return {edit.text: edit for edit in made}


def render(scenes: Sequence[Scene]) -> Tensor:
    """Draws the pictures [B, 3, 32, 32] in [0, 1] of B scenes."""
    shapes = [shape for scene in scenes for shape in scene.shapes]  # 2B
    jitter = torch.tensor([shape.jitter for shape in shapes]) * torch.tensor(JITTER)
    radius = torch.tensor([RADII[shape.size] for shape in shapes]) + jitter[:, 0]
    x = torch.tensor([COLUMNS[shape.column] for shape in shapes]) + jitter[:, 1]
    lane = torch.arange(2).repeat(len(scenes))
    y = HALF / 2 + HALF * lane + jitter[:, 2]
    form = torch.tensor([FORMS.index(shape.form) for shape in shapes])
    mask = coverage(x, y, radius)[torch.arange(len(shapes)), form][:, None]  # [2B, 1, H, W]
    colour = torch.tensor([COLOURS[shape.colour] for shape in shapes])[:, :, None, None]
    painted: Tensor = BACKGROUND + (mask * (colour - BACKGROUND)).unflatten(0, (-1, 2)).sum(1)
    return painted
