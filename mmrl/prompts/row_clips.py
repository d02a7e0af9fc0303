"""The videos of a row as stored clips, and the small videos of synthetic rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from io import BytesIO
from typing import Any

from mmrl.media.video import StoredClip
from mmrl.prompts.row_pictures import BadRow, PictureFolder, content_of
from mmrl.system.errors import ConfigError

SIDE, FPS, SECONDS = 48, 8, 4  # of a synthetic clip: pixels, frames per second, length
GREY = (128, 128, 128)


def clip_of(
    folder: PictureFolder, value: Any, name: str, start: float | None = None, end: float | None = None
) -> StoredClip:
    """Returns a video from a path under the folder, bytes, or {bytes, path}; the header of each file is read once.

    Raises BadRow for any other value, for a file that is missing, for an end that is not after the start, and for a
    start behind the end of the video; where the folder checks headers, also for a file that is empty, and for a header
    that no reader understands.
    """
    if isinstance(value, Mapping):
        value = value["bytes"] if value.get("bytes") is not None else value.get("path")
    try:
        if isinstance(value, str) and not value.startswith("data:"):
            clip = _filed(folder, value, start, end)
        else:
            clip = StoredClip(name, content=content_of(value, name), start=start, end=end)
            clip.header()
        if start and clip.duration() == 0:
            whole = replace(clip, start=None, end=None).duration()
            raise BadRow(f"the part of the video {clip.name} begins at {start:g} seconds; it is {whole:g} seconds long")
    except BadRow:
        raise
    except ValueError as error:  # a file that cannot be read; times that do not fit each other
        raise BadRow(str(error)) from error
    return clip


def _filed(folder: PictureFolder, value: str, start: float | None, end: float | None) -> StoredClip:
    path = folder.find(value, "video")
    clip = StoredClip(value, path=path, start=start, end=end, index=folder.index)
    if folder.checks(path):
        if not path.stat().st_size:
            raise BadRow(f"the video {value!r} is an empty file")
        clip.header()
    return clip


def seconds(value: Any, name: str) -> float:
    """Returns a time in seconds. Raises BadRow for a value that is no number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadRow(f"{name} must be a number of seconds, at least 0, got {value!r:.80}")
    return float(value)


def given_seconds(value: Any, name: str) -> float | None:
    """Returns a time in seconds; None for a field without a value. Raises BadRow as `seconds`."""
    return None if value is None else seconds(value, name)


def moment_text(text: str) -> str:
    """Returns the description of a moment as Time-R1 and its kin write it: lower case, without its last full stop."""
    return text.strip().lower().removesuffix(".")


def span(
    value: Any,
    name: str,
    duration: float | None = None,
    clips: Sequence[StoredClip] = (),
    *,
    overhang: float = 1.0,
) -> tuple[float, float]:
    """Returns start and end in seconds, in this order.

    The start lies before the end of the video, and the end at most `overhang` seconds behind it, by the `duration` that
    the row gives and by the header of the first clip, as far as they are known. Annotations of Charades reach up to
    some seconds beyond the video; their layouts take any overhang, as the projects do. Raises BadRow.
    """
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise BadRow(f"{name} needs [start, end] in seconds, got {value!r:.80}")
    start, end = (seconds(one, name) for one in value)
    try:
        known = [one for one in (duration, *(clip.duration() for clip in clips[:1])) if one is not None]
    except ConfigError as error:  # the frames of a file whose header says no duration
        raise BadRow(str(error)) from error
    if not start < end or any(end > one + overhang or start >= one for one in known):
        within = f", within {min(known):g} seconds of video" if known else ""
        raise BadRow(f"{name} needs start < end{within}, got {value!r:.80}")
    return start, end


@cache
def example_clip(colour: tuple[int, int, int], start: float, end: float) -> bytes:
    """Returns a grey mp4 video of 4 seconds that shows a colour from `start` to `end`."""
    import av
    import numpy

    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"preset": "ultrafast", "crf": "18"})
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        for number in range(FPS * SECONDS):
            shown = colour if start <= number / FPS < end else GREY
            frame = av.VideoFrame.from_ndarray(numpy.full((SIDE, SIDE, 3), shown, dtype=numpy.uint8), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return file.getvalue()
