"""The sizes that samples of one run may have, and which of them a prompt gets."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt

_FIELDS = ("width", "height", "num_frames")  # of a prompt's row
_ALIKE = 2  # digits of the logarithm of an aspect ratio: sizes that differ by less have the same


class Size(NamedTuple):
    """The size of a sample in pixels, and the number of frames of a video."""

    width: int
    height: int
    num_frames: int | None = None

    def __str__(self) -> str:
        frames = "" if self.num_frames is None else f" x {self.num_frames}"
        return f"{self.width} x {self.height}{frames}"


def size_of(prompt: Prompt, sizes: Sequence[Size]) -> Size:
    """Returns the size of a prompt's samples: that of `sizes` which is nearest to what the prompt asks for.

    The `width` and `height` of its row ask for the nearest width and height; without them its first image asks for the
    nearest aspect ratio, and of sizes of the same ratio for the nearest area; a prompt without both gets the first
    size. `num_frames` of its row asks for the nearest number among the sizes that are equally near.
    Raises ConfigError for a size in the row that is no whole number above 0.
    """
    wanted = {name: value for name in _FIELDS if (value := _wanted(prompt, name)) is not None}
    frames = wanted.get("num_frames", sizes[0].num_frames or 1)
    is_exact = "width" in wanted and "height" in wanted
    if is_exact:
        width, height = wanted["width"], wanted["height"]
    else:
        width, height = prompt.media[0].size if prompt.media else sizes[0][:2]

    def distance(one: Size) -> tuple[float, float, float]:
        area = _apart(one.width * one.height, width * height)
        near = round(_apart(one.width / one.height, width / height), _ALIKE)
        if is_exact:
            near = _apart(one.width, width) + _apart(one.height, height)
        return near, _apart(one.num_frames or 1, frames), area

    return min(sizes, key=distance)


def sizes_in(setting: str, values: Sequence[Sequence[int]]) -> tuple[Size, ...]:
    """Returns the sizes of a setting. Raises ValueError for one that is no width and height, and for one twice."""
    for value in values:
        if not 2 <= len(value) <= 3 or min(value) < 1:
            raise ValueError(f"{setting} must be lists of width and height, of a video also num_frames, got {value}")
    if len({len(value) for value in values}) > 1:
        raise ValueError(f"{setting} must all have a number of frames, or none")
    found = tuple(Size(*value) for value in values)
    if twice := [size for n, size in enumerate(found) if size in found[:n]]:
        raise ValueError(f"{setting} has {twice[0]} twice")
    return found


def small_sizes(sizes: Sequence[Size], first: Size) -> tuple[tuple[int, ...], ...]:
    """Returns the setting of a small twin whose first size is `first`: others are twice as wide, high or long where
    those of `sizes` are larger than their first."""
    made = list[tuple[int, ...]]()
    for size in sizes:
        wide, high = size.width / sizes[0].width, size.height / sizes[0].height
        factors = (2 if wide > min(high, 1) else 1, 2 if high > min(wide, 1) else 1)
        frames = first.num_frames
        if frames is not None and (size.num_frames or 0) > (sizes[0].num_frames or 0):
            frames = 2 * frames - 1
        made.append((first.width * factors[0], first.height * factors[1], *([] if frames is None else [frames])))
    return tuple(dict.fromkeys(made))


def _wanted(prompt: Prompt, name: str) -> int | None:
    value: Any = prompt.target.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or value != int(value) or value < 1:
        raise ConfigError(f"{prompt.source or repr(prompt.text)}: {name} must be a whole number above 0, got {value!r}")
    return int(value)


def _apart(one: float, other: float) -> float:
    """Returns how many times two numbers differ, as a logarithm."""
    return abs(math.log(one / other))
