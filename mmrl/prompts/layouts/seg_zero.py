"""Seg-Zero's data: `image` of 840 x 840 pixels, `problem`, `solution` with a box and two points in tags."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow

_PAIR = r"\((\d{1,6}),(\d{1,6})\)"
BOX = re.compile(rf"<box>{_PAIR},{_PAIR}</box>")
POINTS = re.compile(rf"<points>{_PAIR},{_PAIR}</points>")


@dataclass(frozen=True)
class SegZero:
    """Phrases whose object has a box and two points: `<box>(x1,y1),(x2,y2)</box><points>(x,y),(x,y)</points>`.

    Numbers are pixels of the stored image, which is stretched to a square; `img_height` and `img_width`, those of the
    image that it was made from, join the target. Files: `Ricky06662/refCOCOg_2k_840`.
    """

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("image", "problem", "solution")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["image", "images"]),)
        solution = row.text("solution")
        box, points = BOX.search(solution), POINTS.search(solution)
        if box is None or points is None:
            raise BadRow(
                f"the field 'solution' needs <box>(..),(..)</box><points>(..),(..)</points>, got {solution!r:.80}"
            )
        sides, spots = [*map(int, box.groups())], [*map(int, points.groups())]
        target = {
            "box": row_values.box(sides, "solution", media[0].size),
            "points": tuple(row_values.point(spot, "solution", media[0].size) for spot in (spots[:2], spots[2:])),
        }
        return row.prompt(row.text("problem"), media, target)

    def row(self, example: Example) -> dict[str, Any]:
        (x1, y1, x2, y2), (x, y) = example.box, map(int, example.point)
        return {
            "id": f"synthetic_{example.number}",
            "problem": f"the {example.name}",
            "solution": f"<box>({x1},{y1}),({x2},{y2})</box><points>({x},{y}),({x1 + 2},{y1 + 2})</points>",
            "image": {"bytes": example.content, "path": None},
            "img_height": example.size[1],
            "img_width": example.size[0],
        }
