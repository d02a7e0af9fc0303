"""Generated videos as mp4: what another reader finds in the file."""

from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch
from torch import Tensor

from mmrl.media.mp4 import Sound, Video, frames_of, read_frames, read_sound, video_size, write_mp4
from mmrl.system.errors import ConfigError


def moving(height: int = 32, width: int = 32, count: int = 9) -> Tensor:
    """[F, 3, H, W] uint8: blocks of 8 x 8 of strong colours, which move by two pixels a frame."""
    colours = torch.tensor([[230, 25, 25], [25, 200, 50], [40, 75, 240], [240, 230, 25]], dtype=torch.uint8)
    frames = torch.full((count, 3, height, width), 20, dtype=torch.uint8)
    for number in range(count):
        for row, colour in enumerate(colours):
            top, left = 8 * row, 2 * number
            frames[number, :, top : top + 8, left : left + 8] = colour[:, None, None]
    return frames


@pytest.mark.parametrize("fps", [8, 16.0, 24, 12.5, 24000 / 1001])
def test_another_reader_finds_frames_rate_size_and_colours(tmp_path: Path, fps: float) -> None:
    frames = moving()
    write_mp4(tmp_path / "clip.mp4", frames, fps)
    with av.open(str(tmp_path / "clip.mp4")) as container:
        assert len(container.streams) == 1
        stream = container.streams.video[0]
        context = stream.codec_context
        assert (context.name, context.pix_fmt, context.width, context.height) == ("h264", "yuv420p", 32, 32)
        assert stream.average_rate == Fraction(fps).limit_denominator(1001)
        read = torch.stack([torch.from_numpy(frame.to_ndarray(format="rgb24")) for frame in container.decode(stream)])
    assert read.shape == (9, 32, 32, 3)
    # colour is stored for 2 x 2 pixels: the middle of a block is near, an edge may be far
    for number in range(9):
        for row in range(4):
            middle = (slice(8 * row + 2, 8 * row + 6), slice(2 * number + 2, 2 * number + 6))
            wanted = frames[number].permute(1, 2, 0)[middle].float()
            torch.testing.assert_close(read[number][middle].float(), wanted, atol=16, rtol=0)
    assert (read.permute(0, 3, 1, 2).float() - frames.float()).abs().mean() < 4.5


def test_the_same_clip_is_written_as_the_same_bytes(tmp_path: Path) -> None:
    """With the macroblock tree six writes of this clip made two to six different files."""
    noise = 3 * torch.randn(9, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    frames = (moving() + noise).clamp(0, 255).to(torch.uint8)
    contents = set()
    for number in range(6):
        write_mp4(tmp_path / f"{number}.mp4", frames, 8)
        contents.add((tmp_path / f"{number}.mp4").read_bytes())
    assert len(contents) == 1


def test_greys_are_kept_within_two_steps(tmp_path: Path) -> None:
    greys = torch.arange(0, 256, 4, dtype=torch.uint8).expand(3, 3, 64, 64)
    write_mp4(tmp_path / "greys.mp4", greys, 10)
    read, fps = read_frames(tmp_path / "greys.mp4")
    assert fps == 10
    torch.testing.assert_close(read.float(), greys.float(), atol=4, rtol=0)
    assert (read.float() - greys.float()).abs().mean() < 1.5


def test_odd_sides_are_continued_by_one_pixel(tmp_path: Path) -> None:
    frames = moving(33, 35, 3)
    write_mp4(tmp_path / "odd.mp4", frames, 10)
    assert video_size(tmp_path / "odd.mp4") == (3, 36, 34)
    read, _ = read_frames(tmp_path / "odd.mp4")
    assert (read[..., :33, :35].float() - frames.float()).abs().mean() < 5
    torch.testing.assert_close(read[..., 33, :].float(), read[..., 32, :].float(), atol=12, rtol=0)


@pytest.mark.parametrize(("channels", "rate", "kept"), [(1, 16000, 16000), (2, 24000, 24000), (2, 7000, 7350)])
def test_sound_is_kept_as_aac(tmp_path: Path, channels: int, rate: int, kept: int) -> None:
    seconds = torch.arange(rate) / rate
    tone = 0.5 * torch.sin(2 * torch.pi * (rate / 40) * seconds)  # 40 samples are one wave
    write_mp4(tmp_path / "heard.mp4", moving(), 9, Sound(tone.expand(channels, -1), rate))
    sound = read_sound(tmp_path / "heard.mp4")
    assert sound is not None and (sound.rate, len(sound.samples)) == (kept, channels)
    middle = sound.samples[:, kept // 4 : kept * 3 // 4]
    power = torch.fft.rfft(middle[0] * torch.hann_window(middle.shape[1])).abs()
    assert abs(float(power.argmax()) * kept / middle.shape[1] - rate / 40) < 5  # Hz
    torch.testing.assert_close(middle.square().mean(1).sqrt(), torch.full((channels,), 0.5 / 2**0.5), atol=0.03, rtol=0)


def test_a_silent_video_has_no_sound_and_text_is_no_video(tmp_path: Path) -> None:
    write_mp4(tmp_path / "silent.mp4", moving(count=1), 8)
    assert read_sound(tmp_path / "silent.mp4") is None
    (tmp_path / "text.mp4").write_text("no video at all")
    for read in (read_frames, read_sound, video_size):
        with pytest.raises(ConfigError, match=r"text\.mp4"):
            read(tmp_path / "text.mp4")


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        write_mp4(tmp_path / "x.mp4", moving(count=0), 8)
    with pytest.raises(ValueError, match="one or two channels, got 3"):
        write_mp4(tmp_path / "x.mp4", moving(), 8, Sound(torch.zeros(3, 100), 16000))


def test_a_strip_shows_the_first_and_the_last_frame() -> None:
    frames = torch.arange(9, dtype=torch.uint8)[:, None, None, None].expand(9, 3, 4, 64).contiguous()
    strip = Video(frames, 8).strip(3)
    assert strip.size == (3 * 64 + 2 * 2, 4)
    assert [strip.getpixel((x, 0))[0] for x in (0, 66, 132)] == [0, 4, 8]  # type: ignore[index]
    assert Video(frames[:2], 8).strip(6).width == 2 * 64 + 2


def test_pixels_are_rounded_to_the_nearest_step() -> None:
    made = frames_of(torch.tensor([-0.1, 0.0, 0.4 / 255, 0.6 / 255, 1.0, 1.2]).expand(1, 3, 1, 6))
    assert made[0, 0, 0].tolist() == [0, 0, 0, 1, 255, 255]
