"""OmniEdit: `src_img`, `edited_prompt_list`, `edited_img`."""

from dataclasses import dataclass
from typing import ClassVar

from mmrl.prompts.condition_rows import Published


@dataclass(frozen=True)
class OmniEdit(Published):
    """The layout of TIGER-Lab/OmniEdit-Filtered-1.2M (Wei et al. 2024, arXiv 2411.07199).

    Of several wordings of the instruction the first is taken.
    """

    fields: ClassVar[tuple[str, ...]] = ("src_img", "edited_prompt_list", "edited_img")
    text_field: ClassVar[str] = "edited_prompt_list"
    image_fields: ClassVar[tuple[str, ...]] = ("src_img",)
    edited_field: ClassVar[str | None] = "edited_img"
