"""GUI-R1's training data: `image`, `instruction`, `gt_action`, `gt_bbox` in 0..1, `gt_input_text`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.parsing.coordinates import Convention
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row

NO_TEXT = "no input text"


@dataclass(frozen=True)
class GuiR1:
    """Steps whose `gt_bbox` is a box (four numbers) or a point (two); negative numbers stand for no place.

    `history` and `task_type` join the target; `{row.history}` in a template puts the first into the prompt.
    """

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("image", "instruction", "gt_action", "gt_bbox", "gt_input_text")
    convention: ClassVar[Convention] = "unit"

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["image", "images"]),)
        size = media[0].size
        target: dict[str, Any] = {"action": row_values.action(row.need("gt_action"))}
        place = row_values.numbers(row.take("gt_bbox") or [-1.0, -1.0], "gt_bbox", (2, 4))
        if len(place) == 4 and min(place) >= 0:
            target["box"] = row_values.box(place, "gt_bbox", size, self.convention)
        elif min(place) >= 0:
            target["point"] = row_values.point(place, "gt_bbox", size, self.convention)
        text = row.take("gt_input_text")
        if text is not None and str(text).strip().lower() not in ("", NO_TEXT):
            target["input_text"] = str(text)
        return row.prompt(row.text("instruction"), media, target)

    def row(self, example: Example) -> dict[str, Any]:
        width, height = example.size if self.convention == "unit" else (1, 1)
        (x1, y1, x2, y2), (x, y) = example.box, example.point
        place = [[x1 / width, y1 / height, x2 / width, y2 / height], [x / width, y / height], [-100.0, -100.0]]
        kind = example.number % 3
        return {
            "image": {"bytes": example.content, "path": None},
            "instruction": f"Type the answer into the {example.name}" if kind == 2 else f"Open the {example.name}",
            "history": "None",
            "gt_action": "type" if kind == 2 else "click",
            "gt_bbox": place[kind],
            "gt_input_text": example.answer if kind == 2 else NO_TEXT,
            "task_type": "high",
        }
