"""VBench's prompts: `prompt_en`, and the dimensions that its videos are judged in (`dimension`)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row


@dataclass(frozen=True)
class VBench:
    """The layout of VBench_full_info.json of github.com/Vchitect/VBench (Huang et al. 2023, arXiv 2311.17982)."""

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("prompt_en", "dimension")

    def prompt(self, row: Row) -> Prompt:
        dimensions = row_values.texts(row.need("dimension"), "dimension")
        return row.prompt(row.text("prompt_en"), (), {"dimensions": tuple(dimensions)})

    def row(self, example: Example) -> dict[str, Any]:
        return {"prompt_en": f"A {example.name} that moves", "dimension": ["subject_consistency", "motion_smoothness"]}
