"""The product of the rewards: a reward of 0 makes the product 0."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from mmrl.core.data import Scores
from mmrl.core.mixes import Plain, counted, refuse_negative


@dataclass(frozen=True)
class Product(Plain):
    """R = product over k of r_k^w_k, for rewards of at least 0 and weights above 0.

    With weights that sum to 1 this is the weighted geometric mean.
    """

    def check(self, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
        """Raises ValueError where a reward or its weight may be below 0."""
        refuse_negative("product", ranges, weights)

    def __call__(self, scores: Scores) -> Tensor:
        """Returns the mixed rewards [B], float32."""
        values, weights = counted(scores)
        return values.clamp(min=0).pow(weights).prod(1).float()
