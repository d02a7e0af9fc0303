"""Small copies of sampled videos: as long as the video, against means by a slow loop."""

import math

import pytest
import torch

from mmrl.core.data import Outputs
from mmrl.training.small_videos import FRAMES, SIDE, small_video, small_videos


@pytest.mark.parametrize(("count", "height", "width"), [(5, 4, 6), (33, 4, 4), (65, 3, 3), (2, 7, 300), (2, 513, 5)])
def test_a_copy_has_every_nth_frame_and_means_of_squares(count: int, height: int, width: int) -> None:
    video = torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(count))
    step, shrinks = math.ceil(count / FRAMES), math.ceil(max(height, width) / SIDE)
    small = small_video(video, 24.0)
    assert small.fps == 24.0 / step and small.sound is None
    frames = list(range(0, count, step))
    assert len(small.frames) == len(frames) <= FRAMES and max(small.frames.shape[-2:]) <= SIDE
    assert abs(len(frames) / small.fps - count / 24.0) < step / 24.0, "it plays as long"
    for place in (0, len(frames) - 1):
        for y in (0, small.frames.shape[2] - 1):  # the last square is cut where the side is no multiple
            for x in (0, small.frames.shape[3] - 1):
                square = video[frames[place], :, y * shrinks : (y + 1) * shrinks, x * shrinks : (x + 1) * shrinks]
                expected = (square.mean((1, 2)) * 255).round()
                assert small.frames[place, :, y, x].float().sub(expected).abs().max() <= 1


def test_a_small_video_stays_exactly_as_it_is() -> None:
    levels = torch.arange(32 * 3 * 2 * 2).remainder(256).reshape(32, 3, 2, 2)
    small = small_video(levels / 255, 8.0)
    assert small.fps == 8.0 and torch.equal(small.frames, levels.to(torch.uint8))


def test_half_precision_and_gradients_do_not_matter() -> None:
    video = torch.rand(3, 3, 2, 600).bfloat16().requires_grad_()
    small = small_video(video, 8.0)
    assert small.frames.dtype == torch.uint8 and small.frames.shape == (3, 3, 1, 200)


def test_samples_of_one_size_and_of_several_have_a_copy_each_and_others_none() -> None:
    videos = torch.rand(2, 3, 3, 4, 4)
    same = Outputs(videos=videos, fps=(8.0, 16.0))
    assert [one.fps for one in small_videos(same)] == [8.0, 16.0]
    several = Outputs(
        each=(Outputs(videos=videos[:1], fps=(8.0,)), Outputs(videos=torch.rand(1, 40, 3, 2, 2), fps=(8.0,)))
    )
    assert [(len(one.frames), one.fps) for one in small_videos(several)] == [(3, 8.0), (20, 4.0)]
    assert small_videos(Outputs(images=torch.rand(2, 3, 4, 4))) == [] == small_videos(Outputs(texts=("a",)))
