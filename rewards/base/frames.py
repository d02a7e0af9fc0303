"""The frames of a batch of videos, checked, in float32."""

from collections.abc import Iterator

import torch
from torch import Tensor

from mmrl.core.contracts import RewardBatch

PART_SIZE = 2**20  # numbers: what is computed on the way then stays in a cache, and videos of any size fit into memory


def frames_of(batch: RewardBatch, fewest: int) -> Tensor:
    """Returns the frames [B, F, 3, H, W] float32 of all videos.

    Raises ValueError for videos of fewer than `fewest` frames, or without pixels, and for NaN or infinity.
    """
    return _checked(_videos(batch, fewest))


def parts_of(batch: RewardBatch, fewest: int) -> Iterator[Tensor]:
    """Yields the frames of a few videos at a time, [b, F, 3, H, W] float32: at most PART_SIZE numbers, or one video.

    Raises ValueError as `frames_of` does, for NaN and infinity when it comes to them.
    """
    videos = _videos(batch, fewest)
    for part in videos.split(max(1, PART_SIZE // videos.shape[1:].numel())):
        yield _checked(part)


def _videos(batch: RewardBatch, fewest: int) -> Tensor:
    videos = batch.outputs.videos
    assert videos is not None, "scoring checks needs"
    if videos.shape[1] < fewest or 0 in videos.shape[2:]:
        raise ValueError(f"needs videos of at least {fewest} frames with pixels, got the shape {tuple(videos.shape)}")
    return videos


def _checked(videos: Tensor) -> Tensor:
    if not videos.isfinite().all():
        raise ValueError("videos hold NaN or infinity; allowed are numbers in [0, 1]")
    return videos.to(torch.float32)
