"""ScreenSpot-Pro's json: `img_filename`, `instruction`, `bbox` as x1, y1, x2, y2 in pixels, `img_size`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class ScreenSpotPro:
    """Clicks whose `img_size` must be the size of the file: on resized copies of the images every box is wrong."""

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("img_filename", "instruction", "bbox", "img_size")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["img_filename"]),)
        size = row.take("img_size")
        if size is not None and row_values.numbers(size, "img_size", [2]) != media[0].size:
            raise BadRow(f"img_size is {size}, but the image has {media[0].size[0]} x {media[0].size[1]} pixels")
        return row.prompt(row.text("instruction"), media, {"box": row.box("bbox", media)})

    def row(self, example: Example) -> dict[str, Any]:
        return {
            "id": f"synthetic_{example.number}",
            "img_filename": example.image,
            "bbox": list(example.box),
            "instruction": f"open the {example.name}",
            "application": "rectangles",
            "platform": "linux",
            "img_size": list(example.size),
            "ui_type": "icon",
            "group": "Dev",
        }
