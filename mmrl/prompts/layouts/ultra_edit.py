"""UltraEdit: `source_image`, `edit_prompt`, `edited_image`, and in region-based edits `mask_image`."""

from dataclasses import dataclass
from typing import ClassVar

from mmrl.prompts.condition_rows import Published


@dataclass(frozen=True)
class UltraEdit(Published):
    """The layout of BleachNick/UltraEdit and UltraEdit_Region_Based_100k (Zhao et al. 2024, arXiv 2407.05282)."""

    fields: ClassVar[tuple[str, ...]] = ("source_image", "edit_prompt", "edited_image", "mask_image")
    text_field: ClassVar[str] = "edit_prompt"
    image_fields: ClassVar[tuple[str, ...]] = ("source_image",)
    mask_field: ClassVar[str | None] = "mask_image"
    edited_field: ClassVar[str | None] = "edited_image"
