"""One prompt a line of a text file, without anything else."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row


@dataclass(frozen=True)
class Lines:
    """Plain prompts, as dataset/ocr/test.txt of github.com/yifan123/flow_grpo and T2I-CompBench's files have them."""

    file: ClassVar[FileType] = "txt"
    fields: ClassVar[tuple[str, ...]] = ("line",)

    def prompt(self, row: Row) -> Prompt:
        return row.prompt(row.text("line"), (), {})

    def row(self, example: Example) -> dict[str, Any]:
        return {"line": f'A {example.name} left of a {example.names[1]}, with "{example.answer}" written on it'}
