"""ScreenSpot's and ScreenSpot-v2's json: `img_filename`, `instruction`, `bbox` as x, y, width, height in pixels."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row, size_of


@dataclass(frozen=True)
class ScreenSpot:
    """Clicks in the original files; the layout of rootsautomation/ScreenSpot's parquet is `screenspot_hf`."""

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("img_filename", "instruction", "bbox")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["img_filename"]),)
        x, y, width, height = row_values.numbers(row.need("bbox"), "bbox", [4])
        box = row_values.box([x, y, x + width, y + height], "bbox (its corners)", size_of(media, "bbox"))
        return row.prompt(row.text("instruction"), media, {"box": box})

    def row(self, example: Example) -> dict[str, Any]:
        x1, y1, x2, y2 = example.box
        return {
            "img_filename": example.image,
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "instruction": f"open the {example.name}",
            "data_type": "icon",
            "data_source": "windows",
        }
