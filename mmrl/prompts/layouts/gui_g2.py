"""GUI-G2's json: `image_path`, `instruction`, `abs_box` in pixels."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row


@dataclass(frozen=True)
class GuiG2:
    """Clicks on screenshots. A missing image is an error here, where GUI-G2's code trains on another sample."""

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("image_path", "image", "instruction", "abs_box")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["image_path", "image"]),)
        return row.prompt(row.text("instruction"), media, {"box": row.box("abs_box", media)})

    def row(self, example: Example) -> dict[str, Any]:
        return {"image_path": example.image, "instruction": f"open the {example.name}", "abs_box": list(example.box)}
