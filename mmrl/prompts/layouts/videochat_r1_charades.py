"""Charades-STA as VideoChat-R1 keeps it: one object, {video: {duration, timestamps, sentences}}."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_clips import SECONDS, moment_text, seconds, span
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class VideoChatR1Charades:
    """Sentences about VIDEO.mp4 under `images`, each a prompt; `target.span` and `target.duration` are in seconds.

    The text is the sentence in lower case without its last full stop, as in VideoChat-R1's loader.
    """

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("video", "timestamp", "sentence", "duration")
    has_clips: ClassVar[bool] = True

    def parts(self, values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        for video, about in values.items():
            if not isinstance(about, dict):
                raise BadRow(f"video {video!r} needs duration, timestamps and sentences, got {about!r:.80}")
            lists = [about.get(name) for name in ("timestamps", "sentences")]
            if not all(isinstance(one, list) for one in lists) or len(lists[0] or ()) != len(lists[1] or ()):
                raise BadRow(f"video {video!r} needs as many timestamps as sentences, in lists")
            for number, (timestamp, sentence) in enumerate(zip(*lists, strict=True), 1):
                fields = {"video": video, "timestamp": timestamp, "sentence": sentence}
                yield f"video {video!r}, sentence {number}", fields | {"duration": about.get("duration")}

    def prompt(self, row: Row) -> Prompt:
        row.values["video"] = f"{row.text('video')}.mp4"
        clip, duration = row.needed_clip(["video"]), seconds(row.need("duration"), "duration")
        target = {"span": span(row.need("timestamp"), "timestamp", duration, [clip], overhang=inf)}
        return row.prompt(moment_text(row.text("sentence")), (), target | {"duration": duration}, clips=(clip,))

    def row(self, example: Example) -> dict[str, Any]:
        about = {"duration": float(SECONDS), "timestamps": [list(example.span)]}
        return {example.clip.removesuffix(".mp4"): about | {"sentences": [f"The {example.name} is shown."]}}
