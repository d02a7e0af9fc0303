"""UI-R1's json: `img_filename`, `instruction`, and `bbox` in pixels for a click, or `action` for all else."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row


@dataclass(frozen=True)
class UiR1:
    """Steps; a row with a `bbox` is a click, whatever its other fields, as in UI-R1's loader."""

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("img_filename", "instruction", "bbox", "action")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["img_filename"]),)
        if "bbox" in row.values:
            row.take("action")
            target: dict[str, Any] = {"action": "click", "box": row.box("bbox", media)}
        else:
            target = {"action": row_values.action(row.need("action"))}
        return row.prompt(row.text("instruction"), media, target)

    def row(self, example: Example) -> dict[str, Any]:
        fields = {"img_filename": example.image, "instruction": f"open the {example.name}"}
        kind = ("scroll", "open_app", "navigate_back", "input_text")[example.number // 2 % 4]
        return fields | ({"bbox": list(example.box)} if example.number % 2 == 0 else {"action": kind})
