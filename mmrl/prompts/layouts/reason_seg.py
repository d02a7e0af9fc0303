"""ReasonSeg's data as Seg-Zero publishes it: `image`, `text`, `mask` as rows of truth values."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class ReasonSeg:
    """Questions about one object with its mask (`Ricky06662/ReasonSeg_test`); `target.box` is the box around the mask.

    Lai et al. 2023 (LISA), arXiv 2308.00692. `target.mask` is in run lengths, column by column, as COCO writes them.
    """

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("image", "text", "mask")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["image", "images"]),)
        mask = _pixels(row.need("mask"))
        if mask.shape[::-1] != media[0].size:
            raise BadRow(f"the mask is of {mask.shape[1]} x {mask.shape[0]} pixels, the image {media[0].size}")
        rows, columns = np.nonzero(mask)
        if not len(rows):
            raise BadRow("the mask is empty")
        box = tuple(map(float, (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)))
        return row.prompt(row.text("text"), media, {"box": box, "mask": run_lengths(mask)})

    def row(self, example: Example) -> dict[str, Any]:
        (width, height), (x1, y1, x2, y2) = example.size, example.box
        mask = np.zeros((height, width), dtype=bool)
        mask[y1:y2, x1:x2] = True
        return {
            "image": {"bytes": example.content, "path": None},
            "text": f"Which square is called {example.name}?",
            "mask": mask.tolist(),
            "image_id": f"{example.number}",
            "ann_id": "0",
            "img_height": height,
            "img_width": width,
        }


def _pixels(value: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns [H, W] bool from a list of rows. Raises BadRow for rows of several lengths, or other values."""
    if not isinstance(value, list | tuple) or not value or not all(isinstance(line, list | tuple) for line in value):
        raise BadRow(f"the field 'mask' needs rows of truth values, got {value!r:.80}")
    if len({len(line) for line in value}) != 1 or not all(type(x) in (bool, int) for line in value for x in line):
        raise BadRow("the field 'mask' needs rows of one length with a truth value for each pixel")
    return np.asarray(value, dtype=bool)


def run_lengths(mask: np.ndarray[Any, np.dtype[np.bool_]]) -> dict[str, Any]:
    """Returns COCO's run lengths of a mask [H, W]: pixels outside and inside in turn, column by column."""
    flat = np.concatenate([[False], mask.flatten(order="F")])  # begins with a run outside, which may be empty
    ends = np.flatnonzero(flat[1:] != flat[:-1])
    counts = np.diff(np.concatenate([[0], ends, [mask.size]]))
    return {"size": list(mask.shape), "counts": counts.tolist()}
