"""RefCOCO and its kin as Qwen-VL and InternVL evaluate on them: `image`, `sent`, `bbox`, one phrase a line."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class RefCoco:
    """Phrases with one box, x1, y1, x2, y2 in pixels: `refcoco_testA.jsonl` and its seven kin.

    Yu et al. 2016, arXiv 1608.00272; Mao et al. 2016, arXiv 1511.02283. Where `width` and `height` are there, the
    image must have this size: on resized copies every box is wrong.
    """

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = ("image", "sent", "bbox", "width", "height")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["image"]),)
        size = tuple(row.take(name) for name in ("width", "height"))
        if None not in size and size != media[0].size:
            raise BadRow(
                f"width and height are {size}, but the image has {media[0].size[0]} x {media[0].size[1]} pixels"
            )
        return row.prompt(row.text("sent"), media, {"box": row.box("bbox", media)})

    def row(self, example: Example) -> dict[str, Any]:
        return {
            "image": example.image,
            "sent": f"the {example.name}",
            "bbox": [float(side) for side in example.box],
            "height": example.size[1],
            "width": example.size[0],
        }
