"""Edits and videos from images, with columns of your own: `prompt`, and an image for each role."""

import base64
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.condition_rows import condition_prompt, instruction_of
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class Edit:
    """Columns by role, of which a row has at least one image.

    `image` is the picture to edit or the first frame of a video (`images`: several), `references` are further pictures,
    `last_image` is the last frame, `mask` is white where to edit, `control` is to be followed; `edited` is the picture
    after the edit, an output that is given.
    """

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = (
        "prompt", "system", "images", "image", "references", "reference", "last_image", "mask", "control", "edited",
    )  # fmt: skip

    def prompt(self, row: Row) -> Prompt:
        text, system = instruction_of(row, "prompt"), row.take("system")
        if not isinstance(system, str | None):
            raise BadRow(f"the field 'system' must be a text, got {system!r:.80}")
        masks = row.images(["mask"])
        if len(masks) > 1:
            raise BadRow(f"it has {len(masks)} masks, at most 1 is allowed")
        images = {
            "image": row.images(["images", "image"]),
            "reference": row.images(["references", "reference"]),
            "last_image": row.images(["last_image"]),
            "mask": masks,
            "control": row.images(["control"]),
        }
        return condition_prompt(row, text, images, row.images(["edited"]), system)  # type: ignore[arg-type]

    def row(self, example: Example) -> dict[str, Any]:
        mask = base64.b64encode(example.mask).decode("ascii")
        scores = {"instruction": 1 + example.number % 5, "detail": 4, "quality": 3}  # of the edit, for a template
        row = {"prompt": f"Make the {example.name} larger.", "image": example.image, "edited": example.image}
        return row | {"mask": mask} | scores
