"""R1-V's data: `image`, `problem`, `solution` in answer tags."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row


@dataclass(frozen=True)
class R1V:
    """Problems whose answer is the text between the tags."""

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("image", "problem", "solution")

    def prompt(self, row: Row) -> Prompt:
        return row.prompt(row.text("problem"), row.images(), {"answer": row_values.answer(row.text("solution"))})

    def row(self, example: Example) -> dict[str, Any]:
        return {
            "image": {"bytes": example.content, "path": None},
            "problem": f"How many {example.name}s are there?",
            "solution": f"<answer> {example.answer} </answer>",
        }
