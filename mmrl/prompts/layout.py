"""The contract of a layout of data sets, and the layouts by name."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, cast, runtime_checkable

from mmrl.core.data import Prompt
from mmrl.core.plugin_files import plugin_files
from mmrl.parsing.coordinates import Point
from mmrl.prompts.row import Row
from mmrl.system.errors import ConfigError
from mmrl.system.spelling import did_you_mean

LAYOUTS = "mmrl.prompts.layouts"  # the package whose files are the layouts
FileType = Literal["jsonl", "json", "parquet", "csv", "txt"]
IntBox = tuple[int, int, int, int]


@dataclass(frozen=True)
class Example:
    """The task of a synthetic row: an image with two coloured rectangles, in pixels of the image."""

    number: int
    image: str  # the name of its file, under the folder of images
    content: bytes  # of the same file
    mask: bytes  # a PNG of the same size with one channel: white in the first box, black elsewhere
    size: tuple[int, int]  # width, height
    boxes: tuple[IntBox, IntBox]  # x1, y1, x2, y2; half-open
    names: tuple[str, str]
    answer: str
    clip: str  # the name of a video under the same folder that shows the first name's colour for a while
    span: tuple[float, float]  # when, in seconds

    @property
    def box(self) -> IntBox:
        """The first box, which the task is about."""
        return self.boxes[0]

    @property
    def name(self) -> str:
        """The name of the first box."""
        return self.names[0]

    @property
    def point(self) -> Point:
        """The centre of the first box."""
        x1, y1, x2, y2 = self.box
        return (x1 + x2) / 2, (y1 + y2) / 2


@runtime_checkable
class ClipLayout(Protocol):
    """A layout whose rows have videos. Optional."""

    has_clips: ClassVar[bool]


@runtime_checkable
class PartsLayout(Protocol):
    """A layout whose files are one object that holds all rows, or lines that hold several rows each. Optional."""

    def parts(self, values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields each row of the object with its place. Raises BadRow for an object that is none of this layout."""
        ...


@runtime_checkable
class JoinedLayout(Protocol):
    """A layout whose files have several rows for each prompt. Optional.

    Rows of the same prompt are read as one: each of its fields but `joined_by` is the list of their values.
    """

    joined_by: ClassVar[str]  # the field that the rows of a prompt share


class Layout(Protocol):
    """A layout: how the files of a project write a task. It reads their rows, and writes rows like theirs."""

    file: ClassVar[FileType]  # the type of the project's files
    fields: ClassVar[tuple[str, ...]]  # the fields that are read; all other fields of a row join its target

    def prompt(self, row: Row) -> Prompt:
        """Returns the prompt of a row. Raises BadRow for a missing field or one that does not fit."""
        ...

    def row(self, example: Example) -> dict[str, Any]:
        """Returns a task as a row of this layout; `bytes` for an image that stands in the file itself."""
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
