"""InstructPix2Pix: `original_image`, `edit_prompt`, `edited_image`."""

from dataclasses import dataclass
from typing import ClassVar

from mmrl.prompts.condition_rows import Published


@dataclass(frozen=True)
class InstructPix2Pix(Published):
    """The layout of timbrooks/instructpix2pix-clip-filtered (Brooks et al. 2023, arXiv 2211.09800).

    The captions before and after join the target.
    """

    fields: ClassVar[tuple[str, ...]] = ("original_image", "edit_prompt", "edited_image")
    text_field: ClassVar[str] = "edit_prompt"
    image_fields: ClassVar[tuple[str, ...]] = ("original_image",)
    edited_field: ClassVar[str | None] = "edited_image"
