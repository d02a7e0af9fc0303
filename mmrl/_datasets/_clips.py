"""The videos of a row as stored clips, and the small ones that synthetic rows are about."""

import math
from collections.abc import Mapping
from functools import cache
from io import BytesIO
from typing import Any

from mmrl._datasets._pictures import BadRow, PictureFolder, content_of
from mmrl.video import StoredClip

SIDE, FPS, SECONDS = 48, 8, 4  # of a synthetic clip: pixels, frames per second, length
GREY = (128, 128, 128)


def clip_of(
    folder: PictureFolder, value: Any, name: str, start: float | None = None, end: float | None = None
) -> StoredClip:
    """A video from a path under the folder, bytes, or {bytes, path}; what it shows is looked at when it is loaded.

    Raises BadRow for all else, for a file that is missing or empty, and for an end that is not after the start.
    """
    if isinstance(value, Mapping):
        value = value["bytes"] if value.get("bytes") is not None else value.get("path")
    try:
        if isinstance(value, str) and not value.startswith("data:"):
            path = folder.find(value, "video")
            if not path.stat().st_size:
                raise BadRow(f"the video {value!r} is an empty file")
            return StoredClip(value, path=path, start=start, end=end)
        return StoredClip(name, content=content_of(value, name), start=start, end=end)
    except BadRow:
        raise
    except ValueError as error:  # the times do not fit each other
        raise BadRow(str(error)) from error


def seconds(value: Any, name: str) -> float:
    """A time of at least 0 seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadRow(f"{name} must be a number of seconds, at least 0, got {value!r:.80}")
    return float(value)


def span(value: Any, name: str, duration: float | None = None) -> tuple[float, float]:
    """Start and end in seconds, in order; the end at most a second behind the end of the video, where that is known."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise BadRow(f"{name} needs [start, end] in seconds, got {value!r:.80}")
    start, end = (seconds(one, name) for one in value)
    if not start < end or (duration is not None and end > duration + 1):
        within = "" if duration is None else f", within {duration:g} seconds of video"
        raise BadRow(f"{name} needs start < end{within}, got {value!r:.80}")
    return start, end


@cache
def example_clip(colour: tuple[int, int, int], start: float, end: float) -> bytes:
    """A grey mp4 of 4 seconds that shows a colour from `start` to `end`."""
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
