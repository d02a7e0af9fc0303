"""GenEval's prompts: `prompt`, the scene that it names (`include`, `exclude`), and its task (`tag`)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row


@dataclass(frozen=True)
class GenEval:
    """The layout of prompts/evaluation_metadata.jsonl of github.com/djghosh13/geneval (arXiv 2310.11513), as it is."""

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = ("prompt", "tag", "include")

    def prompt(self, row: Row) -> Prompt:
        target = {"tag": row.text("tag"), "include": row.need("include")}
        return row.prompt(row.text("prompt"), (), target)

    def row(self, example: Example) -> dict[str, Any]:
        tag, count = ("single_object", 1) if example.number % 2 == 0 else ("counting", 1 + example.number % 4)
        scene = [{"class": "apple", "count": count}]
        return {"tag": tag, "include": scene, "prompt": f"a photo of {count} apples, {example.name}"}
