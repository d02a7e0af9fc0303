"""VLM-R1's older RefCOCO json: `image`, `problem`, `solution` with the box in pixels."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row


@dataclass(frozen=True)
class VlmR1Rec:
    """Referring expressions with one box; `normalized_solution` and other fields join the target unchanged."""

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("image", "problem", "solution")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["image"]),)
        return row.prompt(row.text("problem"), media, {"box": row.box("solution", media)})

    def row(self, example: Example) -> dict[str, Any]:
        (width, height), (x1, y1, x2, y2) = example.size, example.box
        thousand = [x1 * 1000 // width, y1 * 1000 // height, x2 * 1000 // width, y2 * 1000 // height]
        return {
            "image": example.image,
            "problem": f"Please provide the bounding box of the region that this sentence describes: {example.name}.",
            "solution": [x1, y1, x2, y2],
            "normalized_solution": thousand,
        }
