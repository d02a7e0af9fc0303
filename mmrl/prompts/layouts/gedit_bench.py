"""GEdit-Bench: `input_image`, `instruction`; `task_type`, `key` and `instruction_language` join the target."""

from dataclasses import dataclass
from typing import ClassVar

from mmrl.prompts.condition_rows import Published


@dataclass(frozen=True)
class GEditBench(Published):
    """The layout of stepfun-ai/GEdit-Bench (Liu et al. 2025, Step1X-Edit, arXiv 2504.17761)."""

    fields: ClassVar[tuple[str, ...]] = ("input_image", "instruction")
    text_field: ClassVar[str] = "instruction"
    image_fields: ClassVar[tuple[str, ...]] = ("input_image",)
