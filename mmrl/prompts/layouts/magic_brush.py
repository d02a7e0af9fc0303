"""MagicBrush: `source_img`, `instruction`, `target_img`."""

from dataclasses import dataclass
from typing import ClassVar

from mmrl.prompts.condition_rows import Published


@dataclass(frozen=True)
class MagicBrush(Published):
    """The layout of osunlp/MagicBrush (Zhang et al. 2023, arXiv 2306.10012).

    Its `mask_img` is not read: it is the source with the place of the edit erased, no mask in black and white.
    """

    fields: ClassVar[tuple[str, ...]] = ("source_img", "instruction", "target_img")
    text_field: ClassVar[str] = "instruction"
    image_fields: ClassVar[tuple[str, ...]] = ("source_img",)
    edited_field: ClassVar[str | None] = "target_img"
