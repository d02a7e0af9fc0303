"""TVGBench of Time-R1: `path`, `question`, `answer` as `start-end` in seconds, `start`, `end`, `duration`."""

import re
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_clips import SECONDS, given_seconds, moment_text, span
from mmrl.prompts.row_pictures import BadRow

SPAN = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?)\s*-\s*([0-9]+(?:\.[0-9]*)?)\s*")


@dataclass(frozen=True)
class TVGBench:
    """Moments whose prompt is the question without its last full stop; `target.span` and `target.duration` in seconds.

    `start` and `end` cut the video, where they are not null. Some answers end behind their video, as in Charades.
    """

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("path", "question", "answer", "start", "end", "duration")
    has_clips: ClassVar[bool] = True

    def prompt(self, row: Row) -> Prompt:
        start, end = (given_seconds(row.take(name), name) for name in ("start", "end"))
        clip = row.needed_clip(["path"], start, end)
        match = SPAN.fullmatch(text := row.text("answer"))
        if match is None:
            raise BadRow(f"answer must be `start-end` in seconds, got {text!r:.80}")
        duration = given_seconds(row.take("duration"), "duration")
        ends = [float(match[1]), float(match[2])]
        target = {"span": span(ends, "answer", duration, [clip], overhang=inf), "duration": duration}
        return row.prompt(moment_text(row.text("question")), (), target, clips=(clip,))

    def row(self, example: Example) -> dict[str, Any]:
        start, end = example.span
        return {
            "path": example.clip,
            "question": f"the {example.name} is shown.",
            "answer": f"{start}-{end}",
            "start": None,
            "end": None,
            "duration": float(SECONDS),
            "dataset_name": "synthetic",
        }
