"""The sampler of Granular-GRPO: single random steps, scored at several granularities."""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from mmrl.core.numerics import MOST

from .base.fans import WindowedFans
from .base.window import Window


@dataclass(frozen=True)
class G2RPO(WindowedFans):
    """Fans from one ODE anchor, each child finished with two strides (Zhou et al. 2025, G2RPO, arXiv 2510.01982).

    The defaults are those of bcmi/Granular-GRPO: 16 steps, fans at the first 8, strides 1 and 2, noise level 0.7, 12
    children (`group_size: 12`). A child and the step behind it are computed once for both strides. Goes with advantage
    `granular`, which adds up the advantages of a child over the granularities. The authors make an optimizer step for
    each fan; here there is one step for all fans of an iteration.
    """

    num_steps: Annotated[int, Field(ge=1, le=MOST)] = 16  # denoising steps; the paper's value
    # Strides of the grid behind a fan, each a comparison of its own; the paper's value.
    granularities: tuple[Annotated[int, Field(ge=1)], ...] = (1, 2)
    # The steps at which fans stand; the paper's value.
    window: Window = field(default_factory=lambda: Window(mode="range", last=8))
