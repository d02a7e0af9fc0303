"""Classification data of Visual-RFT and CLS-RL: `image`, `problem`, `solution` with the label in answer tags."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class VisualRftLabels:
    """Images with one label: `laolao77/ViRFT_CLS_flower_4_shot`, `afdsafas/eurosat-4shot-fewshot` and their kin."""

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("image", "problem", "solution")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["image", "images"]),)
        label = row_values.answer(row.text("solution"))
        if not label:
            raise BadRow("the field 'solution' holds no label")
        return row.prompt(row.text("problem"), media, {"label": label})

    def row(self, example: Example) -> dict[str, Any]:
        return {
            "image": {"bytes": example.content, "path": None},
            "problem": f"Which of {' and '.join(sorted(example.names))} is on the left?",
            "solution": f"<answer>{example.name}</answer>",
        }
