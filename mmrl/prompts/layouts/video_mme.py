"""Video-MME: `videoID`, `question`, `options`, `answer`, `duration` (short, medium, long)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow

ENDINGS = ("mp4", "MP4", "mkv")  # of the published videos, by lmms-eval's task videomme


@dataclass(frozen=True)
class VideoMme:
    """Choices about a video under `images`, the question with its options below it (`lmms-lab/Video-MME`).

    The file is VIDEOID.mp4, or .MP4 or .mkv, as some are.

    Fu et al. 2024, arXiv 2405.21075. `target.length` is the row's `duration`, a word; `domain`, `sub_category` and
    `task_type` join the target. Subtitles are not read.
    """

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("videoID", "question", "options", "answer", "duration")
    has_clips: ClassVar[bool] = True

    def prompt(self, row: Row) -> Prompt:
        row.values["video"] = _file_of(row, row.text("videoID"))
        clip = row.needed_clip(["video"])
        options = row_values.texts(row.need("options"), "options")
        target = {"answer": row.text("answer").strip(), "options": options, "length": row.text("duration")}
        return row.prompt("\n".join([row.text("question"), *options]), (), target, clips=(clip,))

    def row(self, example: Example) -> dict[str, Any]:
        return {
            "video_id": f"{example.number:03d}",
            "duration": ("short", "medium", "long")[example.number % 3],
            "domain": "Knowledge",
            "sub_category": "Synthetic",
            "url": "",
            "videoID": example.clip.removesuffix(".mp4"),
            "question_id": f"{example.number:03d}-1",
            "task_type": "Object Recognition",
            "question": f"When is the {example.name} shown?",
            "options": ["A. In the video.", "B. Never.", "C. Before it.", "D. After it."],
            "answer": "A",
        }


def _file_of(row: Row, name: str) -> str:
    """Returns the file of a video; with the first ending where there is none."""
    for ending in ENDINGS:
        try:
            row.folder.find(f"{name}.{ending}", "video")
        except BadRow:
            continue
        return f"{name}.{ending}"
    return f"{name}.{ENDINGS[0]}"
