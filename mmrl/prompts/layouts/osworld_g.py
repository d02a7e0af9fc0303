"""OSWorld-G's json: `image_path`, `instruction`, `box_type`, `box_coordinates` in pixels, `image_size`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class OSWorldG:
    """Clicks into boxes (x, y, width, height) and polygons (x, y of each corner in turn), as in `OSWorld-G.json`.

    Xie et al. 2025 (Jedi), arXiv 2505.13227; the fields are those that its evaluation and others' use.
    `target.polygon` has the corners of either, and `target.box` is the smallest box around them. A row of `box_type`
    refusal has no place to click and is a bad row: leave those out with `bad_rows: skip`.
    """

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("image_path", "image", "instruction", "box_type", "box_coordinates")

    def prompt(self, row: Row) -> Prompt:
        kind = row.text("box_type")
        if kind not in ("bbox", "polygon"):
            raise BadRow(f"box_type must be 'bbox' or 'polygon' for a place to click, got {kind!r:.80}")
        name = "image_path" if "image_path" in row.values else "image"
        media = (row.needed_image([name]),)
        size = media[0].size
        sides = row_values.many(row.need("box_coordinates"), "box_coordinates")
        if kind == "bbox":
            x, y, width, height = row_values.numbers(sides, "box_coordinates of a bbox", [4])
            sides = [x, y, x + width, y, x + width, y + height, x, y + height]
        if len(sides) < 6 or len(sides) % 2:
            raise BadRow(f"a polygon needs x, y of three corners or more, got {len(sides)} numbers")
        pairs = [sides[at : at + 2] for at in range(0, len(sides), 2)]
        corners = tuple(row_values.point(pair, f"corner {n}", size) for n, pair in enumerate(pairs, 1))
        columns, rows = [x for x, _ in corners], [y for _, y in corners]
        around = [min(columns), min(rows), max(columns), max(rows)]
        target = {"box": row_values.box(around, "the box around the corners", size), "polygon": corners}
        return row.prompt(row.text("instruction"), media, target | {"box_type": kind})

    def row(self, example: Example) -> dict[str, Any]:
        x1, y1, x2, y2 = example.box
        is_box = example.number % 2 == 0
        return {
            "id": f"synthetic-{example.number}",
            "image_path": example.image,
            "image_size": list(example.size),
            "instruction": f"click on the {example.name}",
            "box_type": "bbox" if is_box else "polygon",
            "box_coordinates": [x1, y1, x2 - x1, y2 - y1] if is_box else [x1, y1, x2, y1, x2, y2, x1, y2],
            "GUI_types": ["Icon"],
        }
