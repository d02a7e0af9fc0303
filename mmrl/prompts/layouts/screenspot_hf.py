"""rootsautomation/ScreenSpot: `image`, `instruction`, `bbox` as x1, y1, x2, y2 in 0..1."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.layouts.screenspot import platform_and_kind
from mmrl.prompts.row import Row


@dataclass(frozen=True)
class ScreenSpotHf:
    """Clicks in the hub's parquet, whose boxes are shares of the image's sides; the same kinds as in `screenspot`."""

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("image", "instruction", "bbox")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["image"]),)
        return row.prompt(
            row.text("instruction"), media, {"box": row.box("bbox", media, "unit")} | platform_and_kind(row)
        )

    def row(self, example: Example) -> dict[str, Any]:
        (width, height), (x1, y1, x2, y2) = example.size, example.box
        return {
            "file_name": example.image,
            "image": {"bytes": example.content, "path": example.image},
            "bbox": [x1 / width, y1 / height, x2 / width, y2 / height],
            "instruction": f"open the {example.name}",
            "data_type": ("icon", "text")[example.number % 2],
            "data_source": ("windows", "ios", "shop")[example.number % 3],
        }
