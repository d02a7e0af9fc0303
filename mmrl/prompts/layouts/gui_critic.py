"""GUI-Critic-R1's rows: `images`, `problem`, and `solution`, a verdict on an action and below it the right one."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow

_SOLUTION = re.compile(r"\s*(correct|incorrect)\b(.*)", re.DOTALL | re.IGNORECASE)
_AROUND = " \t\r\n\"'"  # what stands around a suggestion, and in the authors' rows `\n` in two letters at its end


@dataclass(frozen=True)
class GuiCritic:
    """Critiques of actions on screens, GUI-Critic-R1/test_files/*.jsonl of github.com/X-PLUG/MobileAgent (42c2724).

    The target gets `label`, Correct or Incorrect, and `suggestion`, the right action in words.
    """

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = ("images", "problem", "solution")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["images", "image"]),)
        solution = row.text("solution")
        if (match := _SOLUTION.fullmatch(solution)) is None:
            raise BadRow(f"the field 'solution' must begin with Correct or Incorrect, got {solution!r:.80}")
        suggestion = match[2].strip(_AROUND).removesuffix("\\n").strip(_AROUND)
        if not suggestion:
            raise BadRow(f"the field 'solution' holds no right action, got {solution!r:.80}")
        return row.prompt(row.text("problem"), media, {"label": match[1].title(), "suggestion": suggestion})

    def row(self, example: Example) -> dict[str, Any]:
        verdict = ("Correct", "Incorrect")[example.number % 2]
        return {
            "images": [example.image],
            "problem": f"<image>\nThe goal is to open the {example.name}. Is it right to click at {example.point}?",
            "solution": f'{verdict} \n"Click on the {example.name}.\\n"',
        }
