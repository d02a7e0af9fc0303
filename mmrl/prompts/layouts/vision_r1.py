"""Vision-R1's data: `image`, `problem`, `solution` with pairs of label and box, `num_instances`, `target_id_maps`."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class VisionR1:
    """Detections of one or several categories: `[[label, [x1, y1, x2, y2]], ...]`, boxes in pixels of the image.

    `solution` may be JSON text, as in the files for its newer trainer. `width`, `height` and the numbers of the
    categories join the target unchanged. Files: `JefferyZhan/Vision-R1-Data`.
    """

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("image", "problem", "solution", "target_id_maps")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["image", "images"]),)
        row.take("target_id_maps")  # numbers of the categories, which the labels make needless
        pairs = row_values.many(row.need("solution"), "solution")
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
            raise BadRow(f"the field 'solution' needs pairs of a label and a box, got {pairs!r:.80}")
        boxes = [row_values.box(box, f"solution {n}", media[0].size) for n, (_, box) in enumerate(pairs, 1)]
        return row.prompt(row.text("problem"), media, row_values.detections(boxes, [label for label, _ in pairs]))

    def row(self, example: Example) -> dict[str, Any]:
        many = 1 + example.number % 2
        pairs = [[name, list(box)] for name, box in zip(example.names, example.boxes, strict=True)][:many]
        ids = {name: number for number, name in enumerate(example.names, 1)}
        return {
            "image": {"bytes": example.content, "path": None},
            "problem": f"Locate every {' and '.join(example.names)} in the image.",
            "solution": json.dumps(pairs),
            "width": example.size[0],
            "height": example.size[1],
            "target_id_maps": json.dumps(ids),
            "num_instances": many,
        }
