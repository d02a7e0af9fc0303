"""Does a video move evenly? Each frame compared with the mean of its two neighbours."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch

from ..base.frames import parts_of


@dataclass(frozen=True)
class MotionSmoothness:
    """The evenness of motion: 1 - mean of |frame_t - (frame_t-1 + frame_t+1) / 2| over pixels and inner frames.

    In [0, 1]. The form of "motion smoothness" of VBench (Huang et al. 2023, arXiv 2311.17982): (255 - MAE) / 255
    between frames and their interpolation. Where VBench interpolates with a network (AMT, Li et al. 2023, arXiv
    2304.09790), the mean of both neighbours stands here, and every inner frame is compared, not every second one: half
    the second difference in time, which is 0 for light that rises or falls evenly. It needs no weights and has a
    gradient, but an object that moves over an edge costs even where it moves evenly. So the number is not VBench's, and
    a still video has 1.

    `relative` divides by how much there is to interpolate, the mean distance of frames to both neighbours:
      1 - sum |x_t - (x_t-1 + x_t+1) / 2| / sum (|x_t - x_t-1| + |x_t - x_t+1|) / 2
    which is in [0, 1] by the triangle inequality and does not grow when a video moves less; a still one has 1. Values
    beyond [0, 1] are cut off. A video of fewer than three frames cannot be judged: ValueError.
    """

    source: ClassVar[str] = "Huang et al. 2023 (VBench), arXiv 2311.17982, without its network"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"videos"})
    batch_size: ClassVar[int | None] = None

    relative: bool = False  # whether to divide by the distance of frames to their neighbours

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32, with a gradient to the videos where they require one.

        Raises ValueError for fewer than 3 frames.
        """
        return torch.cat([self._smoothness(videos.clamp(0, 1)) for videos in parts_of(batch, fewest=3)])

    def _smoothness(self, videos: Tensor) -> Tensor:
        """Returns the scores [b] of videos [b, F, 3, H, W] in [0, 1]."""
        before, inner, after = videos[:, :-2], videos[:, 1:-1], videos[:, 2:]
        pixels = (1, 2, 3, 4)
        deviation = (inner - (before + after) / 2).abs().mean(pixels)  # [b]
        if not self.relative:
            return 1 - deviation
        distance = ((inner - before).abs() + (inner - after).abs()).mean(pixels) / 2
        is_still = distance == 0
        share = deviation / torch.where(is_still, 1.0, distance)  # a still video keeps a gradient that is finite
        return 1 - share.clamp(max=1)  # rounding
