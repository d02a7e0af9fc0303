"""SPIN-Diffusion: images of the data against samples of the last iterate of the policy.

Maths: docs/maths/preference-losses.md#spin-diffusion
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from .base.paths import Pairs
from .diffusion_dpo import DiffusionDpo


@dataclass(frozen=True)
class Spin(DiffusionDpo):
    """Diffusion-DPO in which images of the data win against samples of the frozen last iterate, the reference.

    Yuan et al. 2024, "Self-Play Fine-Tuning of Diffusion Models for Text-to-Image Generation", arXiv 2402.10210; the
    loss is the paper's approximate one, at one noise level of the path instead of the whole path. Take the sampler
    `given_and_drawn` and the reward `given_score`, which scores images of the data above sampled ones. The last
    iterate, the opponent, samples the losers; by default a round is that of the authors' model cards, 500 steps of
    2,048 images, of which they make three.

    Raises ValueError for settings out of range.
    """

    # Which pairs of a group: `all` (each image of the data with each sampled one), `extremes`, `adjacent`.
    pairs: Pairs = "all"
    refresh_every: Annotated[int, Field(ge=1)] | None = 500  # iterations after which the opponent becomes the policy

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refresh_every is None:
            raise ValueError(
                "refresh_every must be a number of iterations, got null: without it this is 'diffusion_dpo'"
            )
