"""Generated videos as files: H.264 with sound as AAC, and the frames and the sound of such a file again."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmrl.media.readers import opened
from mmrl.system.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

# Constant rate factor of x264, from 0 (nothing is lost) to 51. Its own default is 23; 10 leaves what rewards see.
QUALITY = "10"
# x264 with its macroblock tree, the default, writes the same frames as up to 25 different files in 25 writes.
OPTIONS = {"crf": QUALITY, "preset": "medium", "mbtree": "0"}
AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)  # ISO 14496-3
MAX_PIXELS = 5 * 10**8  # of all frames of one video that is read whole: 6 GB in float32


@dataclass(frozen=True)
class Sound:
    """The sound of one video."""

    samples: Tensor  # [channels, S] float32 in [-1, 1]
    rate: int  # samples per second


@dataclass(frozen=True)
class Video:
    """A generated video, to be saved."""

    frames: Tensor  # [F, 3, H, W] uint8, RGB
    fps: float  # frames per second
    sound: Sound | None = None

    def save(self, file: Path) -> None:
        """Writes the video as mp4; see `write_mp4`."""
        write_mp4(file, self.frames, self.fps, self.sound)

    def strip(self, count: int) -> "Image":
        """Returns up to `count` frames, evenly spaced with the first and the last, side by side."""
        from PIL import Image

        total, _, height, width = self.frames.shape
        rows = torch.linspace(0, total - 1, min(count, total)).round().long()
        gap = max(1, width // 32)
        whole = Image.new("RGB", (len(rows) * (width + gap) - gap, height), "white")
        for place, row in enumerate(rows.tolist()):
            frame = Image.fromarray(self.frames[row].permute(1, 2, 0).contiguous().numpy())
            whole.paste(frame, (place * (width + gap), 0))
        return whole


def frames_of(video: Tensor) -> Tensor:
    """Returns the frames [F, 3, H, W] of a video in [0, 1] as uint8, on the CPU."""
    return (video.detach().clamp(0, 1) * 255).round().to(torch.uint8).cpu()


def write_mp4(file: Path, frames: Iterable[Tensor], fps: float, sound: Sound | None = None) -> None:
    """Writes a video that browsers play, frame by frame: an iterator need not hold them all.

    H.264 in yuv420p, with the colours of BT.709 and every fourth number of colour, so that sharp edges of saturated
    colours are blurred by a pixel. A side of odd length is continued by one row or column. Sound of more than two
    channels is refused. The same frames make the same bytes.

    Args:
        frames: F of [3, H, W] uint8 each, RGB, of one size. fps: frames per second.
    Raises:
        ValueError: no frame, or sound of more than two channels.
    """
    import av

    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        raise ValueError("a video needs at least one frame")
    if sound is not None and sound.samples.shape[0] > 2:
        raise ValueError(f"sound has one or two channels, got {sound.samples.shape[0]}")
    height, width = (side + side % 2 for side in first.shape[-2:])
    with av.open(str(file), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001), options=OPTIONS)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        _of_bt709(stream.codec_context)
        heard = None if sound is None else _sound_stream(container, sound)
        for frame in chain([first], frames):
            container.mux(stream.encode(_as_yuv(frame, width, height)))
        container.mux(stream.encode())
        if sound is not None:
            _write_sound(container, heard, sound)


def read_frames(file: Path) -> tuple[Tensor, float]:
    """Returns all frames [F, 3, H, W] uint8 of a video, and its frames per second.

    Raises ConfigError for a file that is no video, or is too large.
    """
    with opened(file.name, file) as video:
        width, height = video.size
        if video.num_frames * width * height > MAX_PIXELS:
            raise ConfigError(
                f"{video.num_frames} frames of {width} x {height} pixels of the video {file.name} are more than "
                f"{MAX_PIXELS:,} pixels; read some of them"
            )
        return torch.stack([pixels for _, pixels in video.frames(list(range(video.num_frames)))]), video.fps


def video_size(file: Path) -> tuple[int, int, int]:
    """Returns the number of frames of a video, its width and its height, without decoding. Raises as `read_frames`."""
    with opened(file.name, file) as video:
        return video.num_frames, *video.size


def read_sound(file: Path) -> Sound | None:
    """Returns the sound of a video; None where it has none. Raises ConfigError for a file that cannot be read."""
    import av
    from av.error import FFmpegError

    try:
        with av.open(str(file)) as container:
            if not container.streams.audio:
                return None
            stream = container.streams.audio[0]
            resampler = av.AudioResampler(format="fltp")
            parts = [
                torch.from_numpy(made.to_ndarray())
                for frame in container.decode(stream)
                for made in resampler.resample(frame)
            ]
            rate = stream.rate
    except FFmpegError as error:
        raise ConfigError(f"cannot read the sound of {file.name}: {error}") from error
    return Sound(torch.cat(parts, 1), rate) if parts else None


def _of_bt709(codec: Any) -> None:
    """Says in the file which colours it has; a reader would guess by the size of the picture."""
    from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

    codec.colorspace = Colorspace.ITU709
    codec.color_primaries = ColorPrimaries.BT709
    codec.color_trc = ColorTrc.BT709
    codec.color_range = ColorRange.MPEG


def _as_yuv(frame: Tensor, width: int, height: int) -> Any:
    """Returns a frame [3, H, W] uint8 for the encoder, its last row and column twice where a side is odd.

    ITU-R BT.709-6, section 3: E'Y = 0.2126 R + 0.7152 G + 0.0722 B, in 8 bits from 16 to 235, the differences of
    colour from 16 to 240. Computed here, since the conversion of FFmpeg brightens by more than one step of 255.
    """
    import av

    missing = (0, width - frame.shape[2], 0, height - frame.shape[1])
    rgb = torch.nn.functional.pad(frame[None].float() / 255, missing, mode="replicate")[0]
    red, green, blue = rgb
    luma = 0.2126 * red + 0.7152 * green + 0.0722 * blue  # [H, W]
    colour = torch.stack([(blue - luma) / 1.8556, (red - luma) / 1.5748])  # [2, H, W] in [-0.5, 0.5]
    small = torch.nn.functional.avg_pool2d(colour[None], 2)[0]  # [2, H / 2, W / 2]
    planes = torch.cat([(16 + 219 * luma).flatten(), (128 + 224 * small).flatten()]).round().to(torch.uint8)
    return av.VideoFrame.from_ndarray(planes.reshape(height * 3 // 2, width).numpy(), format="yuv420p")


def _sound_stream(container: Any, sound: Sound) -> Any:
    """Returns the stream for sound, at its own rate or at the next higher rate that AAC has."""
    rate = min((one for one in AAC_RATES if one >= sound.rate), default=AAC_RATES[0])
    return container.add_stream("aac", rate=rate, layout="mono" if len(sound.samples) == 1 else "stereo")


def _write_sound(container: Any, stream: Any, sound: Sound) -> None:
    import av

    samples = sound.samples.detach().float().clamp(-1, 1).cpu().contiguous().numpy()
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=stream.layout.name)
    frame.sample_rate = sound.rate
    resampler = av.AudioResampler(format="fltp", layout=stream.layout.name, rate=stream.rate)
    for made in (*resampler.resample(frame), *resampler.resample(None)):
        made.pts = None  # sound without gaps: the encoder counts samples
        container.mux(stream.encode(made))
    container.mux(stream.encode())
