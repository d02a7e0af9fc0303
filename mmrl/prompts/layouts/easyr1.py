"""EasyR1's data: `problem` (or `prompt`) with `<image>` marks, `images`, `answer`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import IMAGE_MARK, Row


@dataclass(frozen=True)
class EasyR1:
    """The layout of hiyouga/EasyR1, whose `prompt_key`, `answer_key` and `image_key` are `columns` here."""

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("problem", "prompt", "images", "answer")

    def prompt(self, row: Row) -> Prompt:
        text = row.text("prompt" if "problem" not in row.values and "prompt" in row.values else "problem")
        media = row.images()
        if not media and IMAGE_MARK in text:
            row.need("images")
        return row.prompt(text, media, {"answer": row_values.answers(row.need("answer"))})

    def row(self, example: Example) -> dict[str, Any]:
        return {
            "images": [{"bytes": example.content, "path": None}],
            "problem": f"<image>How many {example.name}s are there?",
            "answer": example.answer,
        }
