"""Frames of files: which are chosen, when they are shown, how large they are; files that cannot be read."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.media import readers, video
from mmrl.media.frame_sizes import FrameSize
from mmrl.media.video import FrameSampling, StoredClip
from mmrl.system.errors import ConfigError
from tests.clips import clip, encoded, in_file, numbers, sound
from tests.parameters import in_one_test


@pytest.mark.slow  # most of a second each, or more
@settings(max_examples=300)
@given(
    total=st.integers(1, 3000),
    fps=st.one_of(st.sampled_from([10.0, 24.0, 25.0, 30000 / 1001, 30.0, 60.0]), st.floats(0.5, 120)),
    rule=st.one_of(
        st.fixed_dictionaries({"fps": st.one_of(st.sampled_from([0.5, 1, 2, 4]), st.floats(0.05, 200))}),
        st.fixed_dictionaries({"num_frames": st.integers(2, 800)}),
    ),
    bounds=st.tuples(st.integers(1, 20), st.integers(20, 900)),
)
def test_frames_are_counted_in_pairs(total: int, fps: float, rule: dict[str, Any], bounds: tuple[int, int]) -> None:
    """The published rule as a search among all even numbers."""
    sampling = FrameSampling(**rule, min_frames=bounds[0], max_frames=bounds[1])
    evens = range(2, 2000, 2)
    if "num_frames" in rule:
        expected = min(evens, key=lambda even: (abs(even - rule["num_frames"]), even % 4))  # 5 -> 4, 7 -> 8
    else:
        least, most = min(e for e in evens if e >= bounds[0]), max(e for e in evens if e <= bounds[1])
        wanted = sorted([least, total / fps * rule["fps"], most])[1]
        expected = max((even for even in evens if even <= min(wanted, total)), default=2)
    if expected > total:
        with pytest.raises(ValueError, match=f"has {total} frames where {expected} are needed"):
            sampling.count(total, fps)
        return
    assert sampling.count(total, fps) == expected
    found = sampling.indices(7, 6 + total, fps).tolist()
    exact = [Fraction(7) + Fraction(number * (total - 1), expected - 1) for number in range(expected)]
    assert len(found) == expected and found[0] == 7 and found[-1] == 6 + total
    assert all(abs(index - place) <= 0.501 for index, place in zip(found, exact, strict=True))


@in_one_test(
    ("total", "fps", "rule", "expected"),
    [
        (250, 25.0, {"fps": 2}, 20),  # ten seconds
        (270, 25.0, {"fps": 2}, 20),  # 21.6: down to a pair
        (25, 25.0, {"fps": 2}, 4),  # 2, but at least 4
        (25, 25.0, {"fps": 2, "min_frames": 5}, 6),  # 5: up to a pair
        (3, 25.0, {"fps": 2}, 2),  # at least 4, but never more than there are
        (250, 25.0, {"fps": 2, "max_frames": 9}, 8),
        (250, 25.0, {"fps": 1000}, 250),
        (25000, 25.0, {"fps": 2}, 768),
        (250, 25.0, {"num_frames": 7}, 8),
        (250, 25.0, {"num_frames": 5}, 4),
    ],
)
def test_numbers_of_frames_by_hand(total: int, fps: float, rule: dict[str, Any], expected: int) -> None:
    assert FrameSampling(**rule).count(total, fps) == expected


@pytest.mark.slow
def test_no_library_writes_to_the_terminal(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    made = clip(25)
    capfd.readouterr()  # what the encoder wrote
    video.key_frames(made, 4)
    made.load(FrameSampling(fps=1000.0, size=FrameSize(28, 784, 10**9)))
    assert capfd.readouterr() == ("", "") and not caplog.records


@pytest.mark.slow
@settings(max_examples=300)
@given(
    height=st.integers(17, 3000),
    width=st.integers(17, 3000),
    num_frames=st.integers(1, 384).map(lambda n: 2 * n),
    factor=st.sampled_from([28, 32]),
    least=st.one_of(st.none(), st.integers(784, 200_000)),
    most=st.one_of(st.none(), st.integers(1024, 2_000_000)),
    total=st.one_of(st.none(), st.integers(100_000, 10**8)),
)
def test_frames_have_the_size_that_transformers_gives_an_image_of_their_area(
    height: int, width: int, num_frames: int, factor: int, least: int | None, most: int | None, total: int | None
) -> None:
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    size, token = FrameSize(factor, least, most, total), factor**2
    low = 128 * token if least is None else least
    share = (115200 * token if total is None else total) * 2 / num_frames  # 0.9 x 128,000 = 115,200
    high = max(min(768 * token, share), int(low * 1.05))
    high = high if most is None else min(most, high)
    if max(height, width) / min(height, width) > 200:
        with pytest.raises(ValueError, match="one side may be 200 times the other"):
            size.of(num_frames, height, width)
        return
    found = size.of(num_frames, height, width)
    assert found == smart_resize(height, width, factor=factor, min_pixels=low if low <= high else 0, max_pixels=high)


@in_one_test(
    ("size", "num_frames", "shape", "expected"),
    [
        (FrameSize(28), 4, (480, 640), (476, 644)),  # 17.14 and 22.86 tokens; 391 of at most 768
        (FrameSize(28), 4, (1080, 1920), (560, 1008)),  # / sqrt(1080 * 1920 / 602112) = 581.9 x 1034.6, down
        (FrameSize(28), 768, (480, 640), (420, 560)),  # 115,200 * 2 / 768 = 300 tokens = 15 x 20
        (FrameSize(28), 4, (48, 64), (280, 392)),  # * sqrt(100352 / 3072) = 274.3 x 365.8, up to whole tokens
        (FrameSize(28, max_pixels=28 * 28 * 16), 4, (48, 64), (56, 56)),  # 16 tokens are below the default least
        (FrameSize(28, 784, 28 * 28 * 4), 4, (28, 2800), (28, 560)),  # 5.6 pixels are no token
        (FrameSize(28, 784), 4, (3, 500), (28, 504)),  # nor are 3
    ],
)
def test_sizes_by_hand(size: FrameSize, num_frames: int, shape: tuple[int, int], expected: tuple[int, int]) -> None:
    assert size.of(num_frames, *shape) == expected


@pytest.mark.parametrize(
    ("form", "codec"),
    [("mp4", "libx264"), ("mp4", "mpeg4"), ("matroska", "libx264"), ("webm", "libvpx-vp9"), ("avi", "mpeg4")],
)
def test_frames_and_their_times_are_exact(form: str, codec: str, tmp_path: Path) -> None:
    content = encoded(25, 10, form=form, codec=codec)
    for made in (StoredClip("bytes", content=content), StoredClip("file", in_file(tmp_path, content))):
        frames = made.load(FrameSampling(fps=4.0))
        expected = [0, 3, 5, 8, 11, 13, 16, 19, 21, 24]
        assert frames.indices.tolist() == numbers(frames.pixels) == frames.times == expected
        torch.testing.assert_close(frames.seconds, torch.tensor(expected, dtype=torch.float64) / 10, rtol=0, atol=1e-6)
        assert (frames.fps, frames.total, frames.sampled_fps) == (10.0, 25, 4.0)
        assert frames.pixels.shape == (10, 3, 48, 64) and frames.pixels.dtype == torch.uint8


def test_every_frame_can_be_read() -> None:
    frames = clip(32, 25).load(FrameSampling(num_frames=32))
    assert numbers(frames.pixels) == list(range(32))


def test_a_rate_of_30000_in_1001_seconds() -> None:
    made = StoredClip("ntsc", content=encoded(31, Fraction(30000, 1001)))
    frames = made.load(FrameSampling(num_frames=4))
    assert frames.indices.tolist() == numbers(frames.pixels) == frames.times == [0, 10, 20, 30]
    expected = torch.tensor([0, 10, 20, 30], dtype=torch.float64) * 1001 / 30000
    torch.testing.assert_close(frames.seconds, expected, rtol=0, atol=1e-4)


VARIABLE = [0, 100, 200, 300, 400, 1400, 2400, 3400, 4400, 5400]  # thousandths of a second


def test_with_a_varying_rate_frames_are_chosen_by_number_and_say_when_they_are_shown() -> None:
    made = StoredClip("varying", content=encoded(10, 10, form="matroska", at=VARIABLE))
    frames = made.load(FrameSampling(num_frames=4))
    assert frames.indices.tolist() == numbers(frames.pixels) == [0, 3, 6, 9]
    torch.testing.assert_close(frames.seconds, torch.tensor([0, 0.3, 2.4, 5.4]).double(), rtol=0, atol=1e-3)
    assert [time / frames.fps for time in frames.times] == pytest.approx([0, 0.3, 2.4, 5.4], abs=0.5 / frames.fps)
    assert frames.times[2] / frames.fps == pytest.approx(2.4, abs=1e-3)


@pytest.mark.parametrize(
    ("start", "end", "expected", "total"),
    [(1.0, None, [10, 15, 19, 24], 15), (None, 1.0, [0, 3, 7, 10], 11), (0.55, 1.26, [6, 8, 10, 12], 7),
     (0, 99, [0, 8, 16, 24], 25)],
)  # fmt: skip
def test_a_part_of_a_clip(start: float, end: float, expected: list[int], total: int) -> None:
    made = StoredClip("part", content=encoded(25, 10), start=start, end=end)
    frames = made.load(FrameSampling(num_frames=4))
    assert frames.indices.tolist() == numbers(frames.pixels) == expected and frames.total == total
    assert frames.seconds.tolist() == pytest.approx([number / 10 for number in expected])


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "broken.mp4: it is empty"),
        (b"no video at all", "broken.mp4: it is no video of the formats MP4"),
        (b"#EXTM3U\n#EXTINF:1,\nhttp://localhost/a.ts", "broken.mp4: it is no video of the formats MP4"),
        (encoded(1), "broken.mp4 has 1 frames where 2 are needed"),
        (sound(), "broken.mp4"),
        (encoded(25)[:900], "broken.mp4"),
        (encoded(25)[:30] + bytes(3000), "broken.mp4"),
        (encoded(60, options={"movflags": "faststart"})[:-2500], "broken.mp4"),
    ],
    ids=["empty", "text", "playlist", "one frame", "sound", "no index", "zeros", "cut off"],
)
def test_a_file_that_cannot_be_read_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    made = StoredClip("broken.mp4", in_file(tmp_path, content))
    with pytest.raises(ConfigError, match=message):
        made.load(FrameSampling(fps=2.0))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the video gone\.mp4: No such file"):
        StoredClip("gone.mp4", tmp_path / "gone.mp4").load(FrameSampling(fps=2.0))


def test_hostile_sizes_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    made, sampling = clip(25), FrameSampling(fps=2.0)
    monkeypatch.setattr(readers, "MAX_FILE_PIXELS", 64 * 48 * 24)
    with pytest.raises(ConfigError, match="has 25 frames of 64 x 48 pixels; at most 73,728 pixels"):
        made.load(sampling)
    monkeypatch.setattr(readers, "MAX_PIXELS", 3000)
    with pytest.raises(ConfigError, match="has 64 x 48 pixels; at most 3,000 are allowed"):
        made.load(sampling)
    monkeypatch.undo()
    monkeypatch.setattr(video, "MAX_CHOSEN_PIXELS", 10_000)
    with pytest.raises(ConfigError, match="4 frames of 64 x 48 pixels of the video 25 frames are more than 10,000"):
        made.load(sampling)


def test_an_error_of_pyav_names_the_video(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path | bytes) -> Any:
        raise RuntimeError("it does not feel like it")

    monkeypatch.setattr(readers, "PyavFile", fail)
    with pytest.raises(ConfigError, match=r"25 frames \(pyav\): it does not feel like it"):
        clip(25).load(FrameSampling(fps=2.0))


@pytest.mark.slow
@pytest.mark.parametrize(("form", "codec"), [("mp4", "libx264"), ("matroska", "libx264"), ("webm", "libvpx-vp9")])
def test_frames_and_times_are_those_of_another_library(form: str, codec: str, tmp_path: Path) -> None:
    decord = pytest.importorskip("decord")
    path = in_file(tmp_path, encoded(25, 10, form=form, codec=codec))
    frames = StoredClip("file", path).load(FrameSampling(num_frames=8))
    other = decord.VideoReader(str(path), ctx=decord.cpu(0), num_threads=1)
    indices = frames.indices.tolist()
    pixels = torch.from_numpy(other.get_batch(indices).asnumpy()).permute(0, 3, 1, 2)
    torch.testing.assert_close(frames.pixels.float(), pixels.float(), rtol=0, atol=3)  # two versions of FFmpeg
    seconds = torch.from_numpy(other.get_frame_timestamp(indices)[:, 0]).double()
    torch.testing.assert_close(frames.seconds, seconds - float(other.get_frame_timestamp(0)[0]), rtol=0, atol=1e-3)


@in_one_test(
    ("settings", "message"),
    [({}, "by fps or by num_frames"), ({"fps": 1, "num_frames": 4}, "by fps or by num_frames"), ({"fps": 0}, "above 0"),
     ({"num_frames": 1}, "at least 2"), ({"fps": 1, "min_frames": 9, "max_frames": 8}, "must be ordered")],
)  # fmt: skip
def test_rules_that_choose_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrameSampling(**settings)


def test_a_picture_that_was_turned_by_a_phone_is_upright() -> None:
    """The rotation is written into the header by hand: a matrix of 90 degrees in the track's box."""
    content = bytearray(encoded(4))
    at = content.index(b"tkhd") + 4 + 4 + 20 + 16
    identity = b"".join(value.to_bytes(4, "big", signed=True) for value in (65536, 0, 0, 0, 65536, 0, 0, 0, 1 << 30))
    assert bytes(content[at : at + 36]) == identity
    turned = (0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30)  # a quarter to the right
    content[at : at + 36] = b"".join(value.to_bytes(4, "big", signed=True) for value in turned)
    frames = StoredClip("turned", content=bytes(content)).load(FrameSampling(num_frames=4))
    assert frames.pixels.shape == (4, 3, 64, 48)
    back = torch.rot90(frames.pixels, 1, (2, 3))  # a quarter to the left
    assert numbers(back) == [0, 1, 2, 3]
