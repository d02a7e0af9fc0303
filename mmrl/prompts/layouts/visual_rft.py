"""Visual-RFT's detection data: `image`, `problem`, `solution` with a list of positions in 0..1000."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.parsing.coordinates import Box
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class VisualRft:
    """Detections: `<answer>[{'Position': [x1, y1, x2, y2], 'Confidence': 1}, ...]</answer>`, or `No Objects`.

    The positions are in the unit of Qwen2-VL, 0..1000, and become pixels.
    """

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("image", "problem", "solution")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["image", "images"]),)
        boxes = _positions(row.need("solution"), media[0].size)
        return row.prompt(row.text("problem"), media, row_values.detections(boxes, None))

    def row(self, example: Example) -> dict[str, Any]:
        (width, height), detections = example.size, []
        for x1, y1, x2, y2 in example.boxes[: 1 + example.number % 2]:
            position = [round(x1 * 1000 / width), round(y1 * 1000 / height)]
            position += [round(x2 * 1000 / width), round(y2 * 1000 / height)]
            detections.append({"Position": position, "Confidence": 1})
        return {
            "image": {"bytes": example.content, "path": None},
            "problem": f"Detect all objects belonging to the category '{example.name}' in the image.",
            "solution": f"<answer>{detections}</answer>",
        }


def _positions(solution: Any, size: tuple[int, int]) -> list[Box]:
    text = (row_values.answer(solution) or "").replace("'", '"')  # they are written as Python's dictionaries
    if text.lower().rstrip(".") == "no objects":
        return []
    detections = row_values.parsed(text)
    if not isinstance(detections, list) or not all(isinstance(one, dict) and "Position" in one for one in detections):
        raise BadRow(f"the field 'solution' must be a list of objects with 'Position', got {solution!r:.80}")
    return [row_values.box(one["Position"], f"Position {n}", size, "thousand") for n, one in enumerate(detections, 1)]
