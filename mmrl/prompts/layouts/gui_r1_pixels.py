"""GUI-R1's evaluation data: as its training data, but `gt_bbox` is in pixels."""

from dataclasses import dataclass
from typing import ClassVar

from mmrl.parsing.coordinates import Convention
from mmrl.prompts.layouts.gui_r1 import GuiR1


@dataclass(frozen=True)
class GuiR1Pixels(GuiR1):
    """Steps with a point or box in pixels of the screenshot."""

    convention: ClassVar[Convention] = "original"
