"""The sampler of Granular-GRPO: one random step at a time, judged at several granularities."""

from dataclasses import dataclass, field

from .base.fans import WindowedFans
from .base.window import Window


@dataclass(frozen=True)
class G2RPO(WindowedFans):
    """Fans from one ODE anchor, each child finished with two strides (Zhou et al. 2025, "G2RPO", arXiv 2510.01982).

    The defaults are those of bcmi/Granular-GRPO: 16 steps, fans at the first 8, strides 1 and 2, noise level 0.7, 12
    children (`group_size: 12`). A child and the step behind it are computed once for both strides. Goes with advantage
    `granular`, which adds up what the granularities say of a child. The authors make an optimizer step for each fan,
    here all fans of an iteration make one.
    """

    num_steps: int = 16
    granularities: tuple[int, ...] = (1, 2)
    window: Window = field(default_factory=lambda: Window(mode="range", last=8))
