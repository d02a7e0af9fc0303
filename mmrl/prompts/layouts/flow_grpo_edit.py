"""The edits of flow_grpo: `prompt`, `image`."""

from dataclasses import dataclass
from typing import ClassVar

from mmrl.prompts.condition_rows import Published
from mmrl.prompts.layout import FileType


@dataclass(frozen=True)
class FlowGRPOEdit(Published):
    """The layout of `train_metadata.jsonl` and `test_metadata.jsonl`, which flow_grpo's script for Kontext reads.

    All other fields of a row, such as `tag` or `include`, join the target.
    """

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = ("prompt", "image")
    text_field: ClassVar[str] = "prompt"
    image_fields: ClassVar[tuple[str, ...]] = ("image",)
