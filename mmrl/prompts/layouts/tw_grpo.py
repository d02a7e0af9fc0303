"""TW-GRPO's data: `video`, `problem` (with its options), and `solution` in tags: one letter, or several with commas."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row


@dataclass(frozen=True)
class TwGrpo:
    """Choices about videos, such as CLEVRER's counterfactual questions, of which several options may be right.

    Dang et al. 2025 (TW-GRPO), arXiv 2505.24718, as the authors' code reads them.
    """

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("problem", "video", "solution")
    has_clips: ClassVar[bool] = True

    def prompt(self, row: Row) -> Prompt:
        clip = row.needed_clip(["video"])
        target = {"answer": row_values.answer(row.text("solution"))}
        return row.prompt(row.text("problem"), (), target, clips=(clip,))

    def row(self, example: Example) -> dict[str, Any]:
        options = [f"{letter} {name}" for letter, name in zip("AB", example.names, strict=True)]
        letters = "A,B" if example.number % 2 else "A"
        return {
            "video": example.clip,
            "problem": "\n".join(["What can be seen?", *options]),
            "solution": f"<answer>{letters}</answer>",
        }
