"""Pick-a-Pic v1 and v2, as their parquet files have them: `caption`, `jpg_0`, `jpg_1`, `label_0`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class PickAPic:
    """Pairs of images for a caption, the preferred one first: `label_0` is 1 for the first image, 0 for the second.

    A tie (`label_0` of 0.5) says nothing about a pair and is a bad row; Diffusion-DPO leaves ties out too, as
    `bad_rows: skip` does.
    """

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("caption", "jpg_0", "jpg_1", "label_0")

    def prompt(self, row: Row) -> Prompt:
        pair = [row.folder.picture(row.need(name), name) for name in ("jpg_0", "jpg_1")]
        label = row.need("label_0")
        if label not in (0, 1):
            raise BadRow(f"label_0 must be 1 (the first image is preferred) or 0, got {label!r:.40}; 0.5 is a tie")
        given = tuple(pair if label == 1 else reversed(pair))
        return row.prompt(row.text("caption"), (), {"given": given, "given_scores": (1.0, 0.0)})

    def row(self, example: Example) -> dict[str, Any]:
        from io import BytesIO

        from PIL import Image, ImageOps

        mirrored = BytesIO()
        ImageOps.mirror(Image.open(BytesIO(example.content))).save(mirrored, format="PNG")
        pair = [example.content, mirrored.getvalue()]
        is_first = example.number % 2 == 0
        first, second = pair if is_first else pair[::-1]
        return {
            "caption": f"{example.name} on grey",
            "jpg_0": first,
            "jpg_1": second,
            "label_0": float(is_first),
            "label_1": float(not is_first),
            "model_0": "synthetic",
            "model_1": "synthetic",
        }
