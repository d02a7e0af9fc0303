"""Charades-STA's text lines: `VIDEO start end##sentence.`"""

import re
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_clips import span
from mmrl.prompts.row_pictures import BadRow

LINE = re.compile(r"([\w-]+) ([0-9]+(?:\.[0-9]*)?) ([0-9]+(?:\.[0-9]*)?)##(.*\S.*)")


@dataclass(frozen=True)
class CharadesSta:
    """Sentences about VIDEO.mp4 under `images`; `target.span` is in seconds.

    The lengths of the videos stand in a file of their own, so there is no `target.duration`; spans are checked against
    the headers of the videos.
    """

    file: ClassVar[FileType] = "txt"
    fields: ClassVar[tuple[str, ...]] = ("line",)
    has_clips: ClassVar[bool] = True

    def prompt(self, row: Row) -> Prompt:
        match = LINE.fullmatch(row.text("line").strip())
        if match is None:
            raise BadRow("a line is `VIDEO start end##sentence`")
        row.values["video"] = f"{match[1]}.mp4"
        clip = row.needed_clip(["video"])
        target = {"span": span([float(match[2]), float(match[3])], "the line", clips=[clip], overhang=inf)}
        return row.prompt(match[4].strip().removesuffix("."), (), target, clips=(clip,))

    def row(self, example: Example) -> dict[str, Any]:
        start, end = example.span
        return {"line": f"{example.clip.removesuffix('.mp4')} {start} {end}##the {example.name} is shown."}
