"""Images that were made for prompts: `prompt`, and `chosen` with `rejected`, or `output(s)` with `score(s)`."""

import base64
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.offline_rows import FIELDS, offline_prompt
from mmrl.prompts.row import Row


@dataclass(frozen=True)
class GivenImages:
    """Outputs that are paths under the folder of images, or images themselves; `images` belong to the question."""

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = FIELDS

    def prompt(self, row: Row) -> Prompt:
        return offline_prompt(row, lambda row, value, name: row.folder.picture(value, name))

    def row(self, example: Example) -> dict[str, Any]:
        from PIL import Image, ImageOps

        mirrored = BytesIO()
        ImageOps.mirror(Image.open(BytesIO(example.content))).save(mirrored, format="PNG")
        rejected = base64.b64encode(mirrored.getvalue()).decode("ascii")
        return {"prompt": f"{example.name} on grey", "chosen": example.image, "rejected": rejected}
