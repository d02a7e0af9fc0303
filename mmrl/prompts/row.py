"""One row of a data set: a layout takes fields one by one, and the fields that are left join the target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mmrl.core.data import Prompt
from mmrl.media.pictures import StoredPicture
from mmrl.media.video import StoredClip
from mmrl.parsing.coordinates import Box, Convention, Point
from mmrl.prompts import row_values
from mmrl.prompts.row_clips import clip_of
from mmrl.prompts.row_pictures import BadRow, PictureFolder

IMAGE_MARK, VIDEO_MARK = "<image>", "<video>"
SIMPLE = frozenset({str, int, float, bool, type(None)})
DEEPEST = 100  # levels of a row's fields
OTHER_MEDIA = ("videos", "video", "audios", "audio")  # left in a row, they would be silently left out


def without_none(value: Any, depth: int = 0) -> Any:
    """Returns a value without the None fields of its structs: Arrow gives each struct of a column the keys of all.

    Raises BadRow for a value nested deeper than `DEEPEST` levels, which would exhaust the stack of whoever walks it.
    """
    if type(value) in SIMPLE:  # most values
        return value
    if depth > DEEPEST:
        raise BadRow(f"its fields are nested too deep, in more than {DEEPEST} levels")
    if isinstance(value, Mapping):
        return {key: without_none(inner, depth + 1) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [without_none(inner, depth + 1) for inner in value]
    return value


@dataclass
class Row:
    """A row without its empty fields. Every method raises BadRow for a field that is missing or does not fit."""

    given: Mapping[str, Any]
    folder: PictureFolder
    columns: Mapping[str, str] = field(default_factory=dict)  # what the file calls a field, where it is another name
    place: str = ""  # its file and line
    values: dict[str, Any] = field(init=False)  # those that are left

    def __post_init__(self) -> None:
        self.values = {
            name: value if type(value) in SIMPLE else without_none(value, 1)
            for name, value in self.given.items()
            if value is not None
        }

    @cached_property
    def nulls(self) -> frozenset[str]:
        """Returns the fields that are there and hold nothing."""
        return frozenset(name for name, value in self.given.items() if value is None)

    @property
    def names(self) -> list[str]:
        """Returns all its fields, as the file calls them."""
        return sorted(self.columns.get(name, name) for name in self.given.keys() - self.nulls)

    def take(self, name: str) -> Any:
        """Returns the value of a field and marks it as used; None where there is none."""
        return self.values.pop(name, None)

    def need(self, name: str) -> Any:
        """Returns the value of a field that must be there, and marks it as used."""
        if name not in self.values:
            called = f"{self.columns[name]!r} (for {name!r})" if name in self.columns else repr(name)
            if name in self.nulls:
                raise BadRow(f"its field {called} is null")
            raise BadRow(f"it has no field {called}; its fields are {', '.join(self.names) or 'none'}")
        return self.take(name)

    def text(self, name: str) -> str:
        """Returns the text of a field that must be there."""
        value = self.need(name)
        if not isinstance(value, str) or not value.strip():
            raise BadRow(f"the field {name!r} must be a text, got {value!r:.80}")
        return value

    def images(self, names: Sequence[str] = ("images", "image")) -> tuple[StoredPicture, ...]:
        """Returns the images of the first of these fields that the row has: one image, or a list."""
        for name in names:
            value = self.take(name)
            if isinstance(value, str) and value.startswith("["):
                value = row_values.parsed(value)  # a list in the cell of a table
            if isinstance(value, list):
                return tuple(self.folder.picture(one, f"{name} {n}") for n, one in enumerate(value, 1))
            if value == "":
                raise BadRow(f"the field {name!r} is empty; leave it out where there is no image")
            if value is not None:
                return (self.folder.picture(value, name),)
        return ()

    def needed_image(self, names: Sequence[str]) -> StoredPicture:
        """Returns the one image of a grounding row."""
        images = self.images(names)
        if len(images) != 1:
            raise BadRow(f"it needs one image in {' or '.join(map(repr, names))}, got {len(images)}")
        return images[0]

    def clips(
        self, names: Sequence[str], start: float | None = None, end: float | None = None
    ) -> tuple[StoredClip, ...]:
        """Returns the videos of the first of these fields that the row has, or their parts between two times (s)."""
        for name in names:
            value = row_values.parsed(self.take(name))
            if isinstance(value, list):
                return tuple(clip_of(self.folder, one, f"{name} {n}", start, end) for n, one in enumerate(value, 1))
            if value == "":
                raise BadRow(f"the field {name!r} is empty; leave it out where there is no video")
            if value is not None:
                return (clip_of(self.folder, value, name, start, end),)
        return ()

    def needed_clip(self, names: Sequence[str], start: float | None = None, end: float | None = None) -> StoredClip:
        """Returns the one video of a row."""
        clips = self.clips(names, start, end)
        if len(clips) != 1:
            raise BadRow(f"it needs one video in {' or '.join(map(repr, names))}, got {len(clips)}")
        return clips[0]

    def box(self, name: str, media: Sequence[StoredPicture], convention: Convention = "original") -> Box:
        """Returns a box on the first image, in its pixels."""
        return row_values.box(self.need(name), name, size_of(media, name), convention)

    def boxes(self, name: str, media: Sequence[StoredPicture], convention: Convention = "original") -> tuple[Box, ...]:
        """Returns a list of boxes on the first image, in its pixels."""
        boxes = row_values.many(self.need(name), name)
        return tuple(
            row_values.box(one, f"{name} {n}", size_of(media, name), convention) for n, one in enumerate(boxes, 1)
        )

    def point(self, name: str, media: Sequence[StoredPicture], convention: Convention = "original") -> Point:
        """Returns a point on the first image, in its pixels."""
        return row_values.point(self.need(name), name, size_of(media, name), convention)

    def prompt(
        self,
        text: str,
        media: Sequence[StoredPicture],
        target: Mapping[str, Any],
        system: str | None = None,
        *,
        clips: Sequence[StoredClip] = (),
    ) -> Prompt:
        """Returns the prompt; fields that were not taken join the target under their own names, except for bytes."""
        for name in OTHER_MEDIA:
            if self.take(name):
                raise BadRow(f"it has {name}, which this layout does not read")
        whole = {key: value for key, value in self.values.items() if type(value) in SIMPLE or not _holds_bytes(value)}
        for key, value in target.items():
            if value is not None:
                whole[key] = value
        return Prompt(text, tuple(media), whole, system, tuple(clips), self.place)


def check_marks(prompt: Prompt) -> None:
    """Raises BadRow for a text that is empty or no Unicode, or whose marks are not as many as the images."""
    for mark, media in ((IMAGE_MARK, prompt.media), (VIDEO_MARK, prompt.clips)):
        marks = prompt.text.count(mark)
        if marks and marks != len(media):
            raise BadRow(f"its text has {marks} marks {mark}, but it has {len(media)} {mark[1:-1]}s")
    if "<audio>" in prompt.text:
        raise BadRow("its text has a mark <audio>; sound is not read")
    if not prompt.text.strip():
        raise BadRow("its prompt is empty")
    try:
        f"{prompt.text}{prompt.system}".encode()
    except UnicodeEncodeError as error:
        raise BadRow(f"its prompt is no Unicode text: {error}") from error


def size_of(media: Sequence[StoredPicture], name: str) -> tuple[int, int]:
    """Returns width and height of the first image; `name` is the field that needs it."""
    if not media:
        raise BadRow(f"{name} needs an image to lie on, it has none")
    return media[0].size


def _holds_bytes(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_bytes(inner) for inner in value.values())
    if isinstance(value, list):
        return any(_holds_bytes(inner) for inner in value)
    return isinstance(value, bytes | bytearray | memoryview)
