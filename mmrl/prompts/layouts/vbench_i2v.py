"""VBench-I2V: `file_name` under the folder of crops, `caption`."""

from dataclasses import dataclass
from typing import ClassVar

from mmrl.prompts.condition_rows import Published
from mmrl.prompts.layout import FileType


@dataclass(frozen=True)
class VBenchI2V(Published):
    """The layout of i2v-bench-info.json (Huang et al. 2024, arXiv 2411.13503).

    `images` says which of the folders is used: `crop/16-9`, `origin` ...
    """

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("file_name", "caption")
    text_field: ClassVar[str] = "caption"
    image_fields: ClassVar[tuple[str, ...]] = ("file_name",)
