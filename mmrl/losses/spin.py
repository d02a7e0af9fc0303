"""SPIN-Diffusion: images of the data against those that the last iterate of the policy drew.

Maths: docs/maths/preference-losses.md#spin-diffusion
"""

from dataclasses import dataclass

from .base.paths import Pairs
from .diffusion_dpo import DiffusionDpo


@dataclass(frozen=True)
class Spin(DiffusionDpo):
    """Diffusion-DPO with an image of the data as the winner, and as losers and reference the frozen last iterate.

    Yuan et al. 2024, "Self-Play Fine-Tuning of Diffusion Models for Text-to-Image Generation", arXiv 2402.10210; the
    loss is their approximate one, at one noise level of the path instead of the whole. The sampler is `given_and_drawn`
    and the reward `given_score`, which puts images of the data above drawn ones. `refresh_every`: iterations after
    which the opponent, who draws the losers, becomes the policy of then; the default is a round of the authors' model
    cards, 500 steps of 2,048 images, of which they make three.

    Raises ValueError for settings out of range.
    """

    pairs: Pairs = "all"
    refresh_every: int | None = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refresh_every is None:
            raise ValueError("refresh_every must be a number of iterations: without it this is 'diffusion_dpo'")
