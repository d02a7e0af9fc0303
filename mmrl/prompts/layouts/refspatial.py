"""RefSpatial-Bench's data (RoboRefer): `image`, optional `depth`, `prompt`, `suffix`, `mask` as a picture."""

from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar

import numpy as np

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.layouts.reason_seg import run_lengths
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow
from mmrl.system.errors import ConfigError


@dataclass(frozen=True)
class Refspatial:
    """Questions after a place, which is right anywhere in the white of its mask; `object` and `step` join the target.

    Zhou et al. 2025 (RoboRefer), arXiv 2506.04308; the files of `BAAI/RefSpatial-Bench`. A `depth` picture of the same
    size, which rows of your own may have, is the second image. `suffix` says how to answer, and stands behind the
    question. `rgb` is another name of `image`.
    """

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("image", "rgb", "depth", "prompt", "suffix", "mask")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["image", "rgb"]), *row.images(["depth"]))
        text, suffix = row.text("prompt"), row.take("suffix")
        mask = row.needed_image(["mask"])
        if {picture.size for picture in (*media, mask)} != {media[0].size}:
            raise BadRow("image, depth and mask need one size")
        try:
            white = np.asarray(mask.load().convert("L")) > 127
        except ConfigError as error:
            raise BadRow(str(error)) from error
        if not white.any():
            raise BadRow("the mask is empty")
        return row.prompt(f"{text} {suffix}" if suffix else text, media, {"mask": run_lengths(white)})

    def row(self, example: Example) -> dict[str, Any]:
        return {
            "id": example.number,
            "object": example.name,
            "prompt": f"Point at the {example.name}.",
            "suffix": "Answer with one point.",
            "image": {"bytes": example.content, "path": None},
            "depth": {"bytes": _grey(example.content), "path": None},
            "mask": {"bytes": example.mask, "path": None},
            "step": 1,
        }


def _grey(content: bytes) -> bytes:
    from PIL import Image

    made = BytesIO()
    Image.open(BytesIO(content)).convert("L").save(made, format="PNG")
    return made.getvalue()
