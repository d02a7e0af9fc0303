"""NExT-GQA's data as VideoChat-R1 reads it: `video`, `question`, `options`, `answer`, `glue`, `duration`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_clips, row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class Nextgqa:
    """Choices about videos, with the times at which the answer can be seen.

    `target.spans` has all times, in seconds, and `target.span` the first of them. Xiao et al. 2023 (NExT-GQA), arXiv
    2309.01327.
    """

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("video", "question", "options", "answer", "glue", "duration")
    has_clips: ClassVar[bool] = True

    def prompt(self, row: Row) -> Prompt:
        clip = row.needed_clip(["video"])
        duration = row_clips.seconds(row.need("duration"), "duration")
        times = row_values.many(row.need("glue"), "glue")
        if not times:
            raise BadRow("the field 'glue' holds no times")
        spans = [row_clips.span(time, f"glue {n}", duration, [clip]) for n, time in enumerate(times, 1)]
        options = row_values.texts(row.need("options"), "options")
        target = {
            "answer": row_values.answer(row.text("answer")),
            "options": options,
            "spans": tuple(spans),
            "span": spans[0],
            "duration": duration,
        }
        return row.prompt("\n".join([row.text("question"), *options]), (), target, clips=(clip,))

    def row(self, example: Example) -> dict[str, Any]:
        letters = [f"({letter}) {name}" for letter, name in zip("AB", example.names, strict=True)]
        return {
            "video": example.clip,
            "question": f"When does the {example.name} appear?",
            "options": letters,
            "answer": "(A)",
            "glue": [list(example.span)],
            "duration": row_clips.SECONDS,
        }
