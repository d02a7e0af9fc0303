"""GEdit-Bench: `input_image`, `instruction`; `task_type`, `key` and `instruction_language` join the target."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.prompts.condition_rows import Published
from mmrl.prompts.layout import Example


@dataclass(frozen=True)
class GEditBench(Published):
    """The layout of stepfun-ai/GEdit-Bench (Liu et al. 2025, Step1X-Edit, arXiv 2504.17761)."""

    fields: ClassVar[tuple[str, ...]] = ("input_image", "instruction")
    text_field: ClassVar[str] = "instruction"
    image_fields: ClassVar[tuple[str, ...]] = ("input_image",)

    def row(self, example: Example) -> dict[str, Any]:
        kinds = {"task_type": ("color_alter", "subject-remove")[example.number % 2]}
        return super().row(example) | kinds | {"instruction_language": ("en", "cn")[example.number // 2 % 2]}
