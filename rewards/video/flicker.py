"""Temporal flickering as VBench measures it: how much a frame differs from the next."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch

from ..base.frames import parts_of


@dataclass(frozen=True)
class Flicker:
    """The steadiness of a video, in [0, 1]: 1 - mean of |frame_t+1 - frame_t| over pixels, colours and pairs of frames.

    "Temporal flickering" of VBench (Huang et al. 2023, arXiv 2311.17982): (255 - MAE) / 255 on grey levels 0 to 255. 1
    for a still video, 0 for one that turns from black to white with every frame. Motion costs too: VBench applies it
    only to videos that are meant to stand still, and as the one reward of a run it ends in stills. VBench reads files
    of 8 bits; here nothing is rounded, so that there is a gradient, and the two differ by at most 1/255. Values beyond
    [0, 1], which no file can hold, are cut off. A video of one frame cannot be judged: ValueError.
    """

    source: ClassVar[str] = "Huang et al. 2023 (VBench), arXiv 2311.17982"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"videos"})
    batch_size: ClassVar[int | None] = None

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32, with a gradient to the videos where they require one.

        Raises ValueError for a single frame.
        """
        return torch.cat([_steadiness(videos.clamp(0, 1)) for videos in parts_of(batch, fewest=2)])


def _steadiness(videos: Tensor) -> Tensor:
    """Returns the scores [b] of videos [b, F, 3, H, W] in [0, 1]."""
    return 1 - (videos[:, 1:] - videos[:, :-1]).abs().mean(dim=(1, 2, 3, 4))
