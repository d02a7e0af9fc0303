"""hiyouga/geometry3k: problems with one diagram, in EasyR1's layout."""

from dataclasses import dataclass

from mmrl.prompts.layouts.easyr1 import EasyR1


@dataclass(frozen=True)
class Geometry3k(EasyR1):
    """Problems whose answers are numbers and formulas without a `\\boxed{}` around them."""
