"""ScreenSpot's and ScreenSpot-v2's json: `img_filename`, `instruction`, `bbox` as x, y, width, height in pixels."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row, size_of

PLATFORMS = {
    **dict.fromkeys(("ios", "android"), "mobile"),
    **dict.fromkeys(("windows", "macos"), "desktop"),
    **dict.fromkeys(("shop", "tool", "gitlab", "forum"), "web"),
}


@dataclass(frozen=True)
class ScreenSpot:
    """Clicks in the original files; the layout of rootsautomation/ScreenSpot's parquet is `screenspot_hf`.

    `target.platform` is mobile, desktop or web, by the row's `data_source`, and `target.kind` is the platform with the
    row's `data_type`, such as "web icon" (Cheng et al. 2024, arXiv 2401.10935).
    """

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("img_filename", "instruction", "bbox")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["img_filename"]),)
        x, y, width, height = row_values.numbers(row.need("bbox"), "bbox", [4])
        box = row_values.box([x, y, x + width, y + height], "bbox (its corners)", size_of(media, "bbox"))
        return row.prompt(row.text("instruction"), media, {"box": box} | platform_and_kind(row))

    def row(self, example: Example) -> dict[str, Any]:
        x1, y1, x2, y2 = example.box
        return {
            "img_filename": example.image,
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "instruction": f"open the {example.name}",
            "data_type": ("icon", "text")[example.number % 2],
            "data_source": ("windows", "ios", "shop")[example.number % 3],
        }


def platform_and_kind(row: Row) -> dict[str, str]:
    """Returns `platform` of the row's `data_source`, and `kind` with its `data_type`; nothing for an unknown source."""
    source, what = row.values.get("data_source"), row.values.get("data_type")
    platform = PLATFORMS.get(source) if isinstance(source, str) else None
    if platform is None:
        return {}
    return {"platform": platform} | ({"kind": f"{platform} {what}"} if isinstance(what, str) else {})
