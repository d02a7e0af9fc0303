"""DrawBench: `prompts`, one prompt, and `category`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row


@dataclass(frozen=True)
class ImagenBench:
    """The parquet files of Jialuo21/DrawBench, whose categories are words (Saharia et al. 2022, arXiv 2205.11487).

    `target.category` is one of the eleven categories.
    """

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("prompts", "category")

    def prompt(self, row: Row) -> Prompt:
        return row.prompt(row.text("prompts"), (), {"category": row.text("category")})

    def row(self, example: Example) -> dict[str, Any]:
        category = ("Colors", "Counting", "Positional")[example.number % 3]
        return {"prompts": f"A {example.name} left of a {example.names[1]}", "category": category}
