"""Clips that are lists of pictures or shuffled, and what all clips can do."""

import math
import pickle
from collections.abc import Sequence
from io import BytesIO

import pytest
import torch
from PIL import Image

from mmrl.media.frame_sizes import FrameSize
from mmrl.media.pictures import StoredPicture
from mmrl.media.video import FrameClip, FrameSampling, ShuffledClip, StoredClip, key_frames
from mmrl.system.errors import ConfigError
from tests.clips import clip, coded, encoded, numbers
from tests.parameters import in_one_test


def test_a_list_of_pictures_has_the_times_that_qwen_vl_utils_gives_it() -> None:
    """Its files are not compared: it reads them by libraries of the system alone."""
    from qwen_vl_utils.vision_process import fetch_video

    images = [Image.fromarray(coded(number).numpy()) for number in range(5)]
    given = {"video": images, "sample_fps": 4.0, "min_pixels": 784, "max_pixels": 3136}
    (expected, told), sampled_fps = fetch_video(given, return_video_metadata=True, return_video_sample_fps=True)
    size = FrameSize(28, 784, 3136)
    found = pictures(range(5), [number / 4 for number in range(5)]).load(FrameSampling(fps=2.0, size=size))
    assert (found.total, found.fps, found.sampled_fps) == (told["total_num_frames"], told["fps"], sampled_fps)
    assert found.times == told["frames_indices"] and found.pixels.shape == expected.shape


def pictures(shown: Sequence[int], seconds: Sequence[float], width: int = 64) -> FrameClip:
    made = []
    for number in shown:
        content = BytesIO()
        Image.fromarray(coded(number, width).numpy()).save(content, "PNG")
        made.append(StoredPicture(f"picture {number}", content=content.getvalue()))
    return FrameClip("pictures", tuple(made), tuple(seconds))


def test_pictures_are_taken_as_they_are_and_the_last_one_twice_where_they_are_odd() -> None:
    frames = pictures([4, 7, 9], [10, 10.5, 11.5]).load(FrameSampling(fps=1.0))
    assert numbers(frames.pixels) == [4, 7, 9, 9] and frames.indices.tolist() == [0, 1, 2, 2]
    assert frames.fps == 2 / 1.5 and frames.total == 4 and frames.sampled_fps == frames.fps
    assert frames.seconds.tolist() == [0, 0.5, 1.5, 2.25]
    alone = pictures([3], [0]).load(FrameSampling(fps=1.0))
    assert numbers(alone.pixels) == [3, 3] and alone.seconds.tolist() == [0, 0.5]


def test_too_many_pictures_are_thinned_out_evenly() -> None:
    frames = pictures(range(10), range(10)).load(FrameSampling(fps=1.0, max_frames=5))
    assert numbers(frames.pixels) == [0, 3, 6, 9] and frames.seconds.tolist() == [0, 3, 6, 9]
    assert frames.sampled_fps == 0.4


@in_one_test(
    ("shown", "seconds", "message"),
    [([1], [], "1 pictures and 0 times"), ([], [], "needs a time"), ([1, 2], [1, 1], "must be finite and grow"),
     ([1, 2], [0, math.nan], "must be finite and grow"), ([1, 2], [0, math.inf], "must be finite and grow")],
)  # fmt: skip
def test_pictures_need_growing_times(shown: list[int], seconds: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pictures(shown, seconds)


def test_pictures_of_different_sizes_are_refused() -> None:
    two = FrameClip("mixed", pictures([1], [0]).pictures + pictures([2], [0], 80).pictures, (0.0, 1.0))
    with pytest.raises(
        ConfigError, match=r"pictures of the video mixed have different sizes: \[\(64, 48\), \(80, 48\)\]"
    ):
        two.load(FrameSampling(fps=1.0))


@pytest.mark.slow  # most of a second each, or more
def test_a_shuffled_clip_shows_its_frames_in_disorder_at_the_same_times() -> None:
    made, sampling = clip(25), FrameSampling(fps=4.0)
    plain = made.load(sampling)
    orders = set()
    for seed in range(20):
        found = ShuffledClip(made, seed).load(sampling)
        assert sorted(numbers(found.pixels)) == numbers(plain.pixels) != numbers(found.pixels)
        assert torch.equal(found.seconds, plain.seconds) and found.times == plain.times
        assert numbers(ShuffledClip(made, seed).load(sampling).pixels) == numbers(found.pixels)
        orders.add(tuple(numbers(found.pixels)))
    assert len(orders) == 20


def test_two_frames_are_always_swapped_and_one_shown_twice_stays() -> None:
    sampling = FrameSampling(fps=2.0)
    for seed in range(10):
        assert numbers(ShuffledClip(pictures([1, 2], [0, 1]), seed).load(sampling).pixels) == [2, 1]
        assert numbers(ShuffledClip(pictures([1], [0]), seed).load(sampling).pixels) == [1, 1]
        odd = numbers(ShuffledClip(pictures([1, 2, 3], [0, 1, 2]), seed).load(sampling).pixels)
        assert sorted(odd) == [1, 2, 3, 3] != odd


def test_clips_are_hashable_and_can_be_sent_to_another_process() -> None:
    content = encoded(8)
    one, view = StoredClip("a", content=content), StoredClip("a", content=memoryview(content))
    assert (
        one == view and hash(one) == hash(view) and len({one, view, ShuffledClip(one, 1), ShuffledClip(view, 1)}) == 2
    )
    assert pickle.loads(pickle.dumps(view)) == one
    assert len({StoredClip("a", content=content, start=0.1), one}) == 2
    with pytest.raises(ValueError, match="needs a path or its bytes"):
        StoredClip("a")
    with pytest.raises(ValueError, match="start must be 0 or more and before end, got 2 and 1"):
        StoredClip("a", content=content, start=2, end=1)
    with pytest.raises(ConfigError, match=r"fewer than two frames between 5 and 6 seconds; it is 0\.8 seconds long"):
        StoredClip("a", content=content, start=5, end=6).load(FrameSampling(fps=1.0))


def test_key_frames_are_spread_over_the_clip() -> None:
    found = key_frames(clip(25), 4)
    assert [second for second, _ in found] == pytest.approx([0, 0.8, 1.6, 2.4])
    assert all(picture.size == (64, 48) for _, picture in found)
    assert len(key_frames(pictures([1, 2], [0, 1]), 8)) == 2
