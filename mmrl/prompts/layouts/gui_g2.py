"""GUI-G2's json: `image_path`, `instruction`, `abs_box` in pixels."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class GuiG2:
    """Clicks on screenshots. A missing image is an error here, where GUI-G2's code trains on another sample.

    `image_path` is an absolute path in the authors' rows (`outside: true` allows it); `image`, below the folder of
    images, is taken where there is no such file.
    """

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("image_path", "image", "instruction", "abs_box")

    def prompt(self, row: Row) -> Prompt:
        if "image" in row.values and isinstance(path := row.values.get("image_path"), str) and not _is_there(row, path):
            row.take("image_path")
        media = (row.needed_image(["image_path", "image"]),)
        row.take("image")
        return row.prompt(row.text("instruction"), media, {"box": row.box("abs_box", media)})

    def row(self, example: Example) -> dict[str, Any]:
        return {"image_path": example.image, "instruction": f"open the {example.name}", "abs_box": list(example.box)}


def _is_there(row: Row, path: str) -> bool:
    try:
        row.folder.find(path)
    except BadRow:
        return False
    return True
