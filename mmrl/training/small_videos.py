"""Small copies of sampled videos for people: a rollout loses its pixels once they are judged."""

import math

import torch
from torch import Tensor

from mmrl.core.data import Outputs
from mmrl.media.mp4 import Video, frames_of

FRAMES, SIDE = 32, 256  # at most, of a small copy


def small_videos(outputs: Outputs) -> list[Video]:
    """Returns a small copy of each sample's video, without sound; [] where samples are no videos."""
    if outputs.each is not None:
        return [video for one in outputs.each for video in small_videos(one)]
    if outputs.videos is None or outputs.fps is None:
        return []
    return [small_video(video, fps) for video, fps in zip(outputs.videos, outputs.fps, strict=True)]


@torch.no_grad()
def small_video(video: Tensor, fps: float) -> Video:
    """Returns every n-th frame of a video [F, 3, H, W] in [0, 1], shrunk by a whole number, as long as the video."""
    step, shrinks = math.ceil(len(video) / FRAMES), math.ceil(max(video.shape[-2:]) / SIDE)
    frames = video[::step].detach()
    if shrinks > 1:
        frames = torch.nn.functional.avg_pool2d(frames.float(), shrinks, ceil_mode=True, count_include_pad=False)
    return Video(frames_of(frames), fps / step)
