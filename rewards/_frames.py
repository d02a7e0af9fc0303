"""What rewards of videos share: the frames of a batch, checked, in numbers of full precision."""

import torch
from torch import Tensor

from mmrl.contracts import RewardBatch


def frames_of(batch: RewardBatch, fewest: int) -> Tensor:
    """[B, F, 3, H, W] float32.

    Raises ValueError for videos of fewer than `fewest` frames, or without pixels, and for NaN or infinity.
    """
    videos = batch.outputs.videos
    assert videos is not None, "scoring checks needs"
    if videos.shape[1] < fewest or 0 in videos.shape[2:]:
        raise ValueError(f"needs videos of at least {fewest} frames with pixels, got the shape {tuple(videos.shape)}")
    if not videos.isfinite().all():
        raise ValueError("videos hold NaN or infinity; allowed are numbers in [0, 1]")
    return videos.to(torch.float32)
