"""Clips that were made for prompts: `prompt`, and `chosen` with `rejected`, or `output(s)` with `score(s)`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.offline_rows import FIELDS, offline_prompt
from mmrl.prompts.row import Row
from mmrl.prompts.row_clips import clip_of


@dataclass(frozen=True)
class GivenVideos:
    """Outputs that are paths of videos under the folder of images; `images` belong to the question."""

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = FIELDS
    has_clips: ClassVar[bool] = True

    def prompt(self, row: Row) -> Prompt:
        return offline_prompt(row, lambda row, value, name: clip_of(row.folder, value, name))

    def row(self, example: Example) -> dict[str, Any]:
        return {"prompt": f"{example.name} on grey", "output": example.clip}
