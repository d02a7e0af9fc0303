"""GUI-G1's json: `image`, `problem`, `solution` with the box in pixels, `rate` with the weight of the row."""

from dataclasses import dataclass
from typing import Any

from mmrl.prompts.layout import Example
from mmrl.prompts.layouts.vlm_r1_rec import VlmR1Rec


@dataclass(frozen=True)
class GuiG1(VlmR1Rec):
    """The layout of VLM-R1, from which its code is made, where each row has the difficulty that weighs it."""

    def row(self, example: Example) -> dict[str, Any]:
        row = super().row(example)
        return {key: row[key] for key in ("image", "problem", "solution")} | {"rate": 1 + example.number % 2 / 2}
