"""What a layout is, and the layouts by name."""

import importlib
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, cast

from mmrl.core.data import Prompt
from mmrl.core.plugin_files import plugin_files
from mmrl.parsing.coordinates import Point
from mmrl.prompts.row import Row
from mmrl.system.errors import ConfigError
from mmrl.system.spelling import did_you_mean

LAYOUTS = "mmrl.prompts.layouts"  # the package whose files are the layouts
FileType = Literal["jsonl", "json", "parquet", "txt"]
IntBox = tuple[int, int, int, int]


@dataclass(frozen=True)
class Example:
    """What a synthetic row is about: an image with two coloured rectangles, in pixels of it."""

    number: int
    image: str  # the name of its file, under the folder of images
    content: bytes  # of the same file
    size: tuple[int, int]  # width, height
    boxes: tuple[IntBox, IntBox]  # x1, y1, x2, y2; half-open
    names: tuple[str, str]
    answer: str
    clip: str  # the name of a video under the same folder that shows the first name's colour for a while
    span: tuple[float, float]  # when, in seconds

    @property
    def box(self) -> IntBox:
        """The box that is asked for."""
        return self.boxes[0]

    @property
    def name(self) -> str:
        """What is inside of it."""
        return self.names[0]

    @property
    def point(self) -> Point:
        """Its centre."""
        x1, y1, x2, y2 = self.box
        return (x1 + x2) / 2, (y1 + y2) / 2


class Layout(Protocol):
    """How somebody's files write a task: reads their rows, and writes rows like theirs.

    A layout whose rows have videos says so by a class attribute `has_clips`.
    """

    file: ClassVar[FileType]  # what such data come in
    fields: ClassVar[tuple[str, ...]]  # what is read; all other fields of a row join its target

    def prompt(self, row: Row) -> Prompt:
        """The prompt of a row; raises BadRow."""
        ...

    def row(self, example: Example) -> dict[str, Any]:
        """A row in this layout; `bytes` for an image that stands in the file itself."""
        ...


def names() -> list[str]:
    """Returns the names of the layouts, sorted, from the files of `mmrl/prompts/layouts/`; imports none of them."""
    folder = Path(importlib.import_module(LAYOUTS).__path__[0])
    return list(plugin_files(folder, is_nested=False))


def find(name: str) -> Layout:
    """Returns the layout of a name. Raises ConfigError for an unknown name."""
    if name not in names():
        raise ConfigError(f"unknown layout {name!r}{did_you_mean(name, names())}")
    module = importlib.import_module(f"{LAYOUTS}.{name}")
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and is_dataclass(value) and value.__module__ == module.__name__
    ]
    assert len(classes) == 1, f"{module.__name__} must hold one dataclass, has {[cls.__name__ for cls in classes]}"
    return cast(Layout, classes[0]())
