"""Moments of videos, as Time-R1 has them: `video`, `timestamp`, `sentence`, `duration`."""

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.media.video import StoredClip
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_clips import SECONDS, given_seconds, moment_text, span


@dataclass(frozen=True)
class TimeR1:
    """Moments whose prompt is the sentence in lower case without its last full stop, as in Time-R1's loader.

    `target.span` and `target.duration` are in seconds. With `video_start` and `video_end` the video is the part between
    these times, and the span counts from its start. A file that ends before `video_end` is that part already, as most
    of the published ones are (`4jujhM5qhEc_00:00:39:000_00:01:24:700.mp4` of 45.7 seconds), and is taken whole.
    """

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("video", "timestamp", "sentence", "duration", "video_start", "video_end")
    has_clips: ClassVar[bool] = True

    def prompt(self, row: Row) -> Prompt:
        start, end = (given_seconds(row.take(name), name) for name in ("video_start", "video_end"))
        video = row.values.get("video")
        clip = row.needed_clip(["video"])
        if not _is_cut(clip, start, end):
            row.values["video"] = video
            clip = row.needed_clip(["video"], start, end)
        duration = given_seconds(row.take("duration"), "duration")
        target = {
            "span": span(row.need("timestamp"), "timestamp", duration, [clip], overhang=inf),
            "duration": duration,
        }
        return row.prompt(moment_text(row.text("sentence")), (), target, clips=(clip,))

    def row(self, example: Example) -> dict[str, Any]:
        return {
            "video": example.clip,
            "timestamp": list(example.span),
            "sentence": f"The {example.name} is shown.",
            "duration": float(SECONDS),
        }


def _is_cut(clip: StoredClip, start: float | None, end: float | None) -> bool:
    """Returns whether a file holds no more than the part from `start` to `end` seconds of a longer video."""
    if start is None and end is None:
        return True
    seconds = clip.duration()
    return end is not None and seconds is not None and seconds < end - 1
