"""The videos of prompts: files, bytes or lists of pictures, and the frames of them that a model sees."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmrl.media.file_headers import counted_seconds, read_header
from mmrl.media.frame_sizes import FrameSize
from mmrl.media.header_index import Header, HeaderIndex
from mmrl.media.pictures import Clip, Picture
from mmrl.media.readers import opened
from mmrl.system.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

FRAME_FACTOR = 2  # frames that models merge into one step of time; qwen-vl-utils' own is not imported to check settings
MAX_CHOSEN_PIXELS = 2 * 10**9  # of all selected frames of one clip, as they are stored: 6 GB


@dataclass(frozen=True)
class Frames:
    """The selected frames of one clip, in the order of time."""

    pixels: Tensor  # [F, 3, H, W] uint8, RGB
    seconds: Tensor  # [F] float64: the time of each frame, from the first frame of the file
    indices: Tensor  # [F] int64: the number of each frame in the file
    fps: float  # frames per second of the file, on average
    total: int  # frames that the selection was made from

    @property
    def sampled_fps(self) -> float:
        """The frames per second that the model sees, on average (qwen-vl-utils)."""
        return len(self.indices) / self.total * self.fps

    @property
    def times(self) -> list[float]:
        """F frame numbers, whose quotients by `fps` are the times of the frames.

        Where the frame rate is constant, they are the whole numbers in the file, with which models were trained. A
        frame whose true time differs from its number gets the number of its true time.
        """
        numbers, shown = self.indices.tolist(), (self.seconds * self.fps).tolist()
        return [number if abs(number - at) < 0.5 else at for number, at in zip(numbers, shown, strict=True)]

    def resized(self, size: FrameSize | None) -> "Frames":
        """Returns the frames with resized pixels; the same frames for a size of None."""
        return self if size is None else replace(self, pixels=size.resize(self.pixels))


@dataclass(frozen=True)
class FrameSampling:
    """The selection of frames of a clip, and their size, by qwen-vl-utils.

    The frames are selected by `fps` or by `num_frames`. They are spaced evenly by number over the clip, with its first
    and its last frame among them.
    """

    fps: float | None = None  # frames per second; their number is rounded down to a multiple of 2
    num_frames: int | None = None  # frames of the clip, rounded to the nearest multiple of 2 (5 -> 4, 7 -> 8)
    min_frames: int = 4  # with `fps`: at least so many, or all that there are
    max_frames: int = 768  # with `fps`: at most so many
    size: FrameSize | None = None  # None: that of the file

    def __post_init__(self) -> None:
        if (self.fps is None) == (self.num_frames is None):
            raise ValueError("frames are chosen by fps or by num_frames, one of the two")
        if self.fps is not None and not 0 < self.fps < math.inf:
            raise ValueError(f"fps must be above 0, got {self.fps}")
        if self.num_frames is not None and self.num_frames < FRAME_FACTOR:
            raise ValueError(f"num_frames must be at least {FRAME_FACTOR}, got {self.num_frames}")
        if not 1 <= self.min_frames <= self.max_frames or self.max_frames < FRAME_FACTOR:
            raise ValueError(
                f"min_frames and max_frames must be ordered, and the second at least {FRAME_FACTOR}, "
                f"got {self.min_frames} and {self.max_frames}"
            )

    def count(self, total: int, fps: float) -> int:
        """Returns how many of `total` frames at `fps` frames per second are selected. Raises ValueError for too few."""
        from qwen_vl_utils.vision_process import round_by_factor, smart_nframes

        asked: dict[str, float] = {"nframes": self.num_frames or FRAME_FACTOR}
        if self.fps is not None:
            is_all = total / fps * self.fps > total  # of more frames than there are, `smart_nframes` logs a warning
            rate, fps = (1.0, 1.0) if is_all else (self.fps, fps)
            asked = {"fps": rate, "min_frames": self.min_frames, "max_frames": self.max_frames}
        try:
            count: int = smart_nframes(asked, total, fps)
        except ValueError as error:
            needed = round_by_factor(self.num_frames or FRAME_FACTOR, FRAME_FACTOR)
            raise ValueError(f"has {total} frames where {needed} are needed") from error
        return count

    def indices(self, first: int, last: int, fps: float) -> Tensor:
        """Returns the numbers of the selected frames, [F] int64, of those from `first` to `last`."""
        count = self.count(last - first + 1, fps)
        return torch.linspace(first, last, count).round().long()


@dataclass(frozen=True)
class OutputFrames(FrameSampling):
    """The selection of exactly `num_frames` frames at `rate` frames per second, from the middle of a clip.

    For clips that stand for samples of a policy which makes videos.
    """

    rate: float = 0.0  # above 0, where the clip's own rate is lower, frames are repeated

    def count(self, total: int, fps: float) -> int:
        assert self.num_frames is not None, "set by whoever makes samples"
        return self.num_frames

    def indices(self, first: int, last: int, fps: float) -> Tensor:
        """Returns the numbers of the frames, [F] int64. Raises ValueError for a clip that is too short."""
        count, total = self.count(last - first + 1, fps), last - first + 1
        span = (count - 1) * fps / self.rate  # in frames of the file
        if span > total - 1 + 0.5:
            raise ValueError(
                f"has {total} frames at {fps:g} per second, which is shorter than {count} frames at {self.rate:g}"
            )
        span = min(span, total - 1)
        start = first + (total - 1 - span) / 2
        return torch.linspace(start, start + span, count, dtype=torch.float64).round().long()


@dataclass(frozen=True)
class StoredClip:
    """A video that is stored in a file, or in memory, or the part of one between two times.

    Times stay those of the whole file. Frames are selected by number: where the frame rate varies they are not spaced
    evenly in time.
    """

    name: str  # in errors
    path: Path | None = None  # of the file; None: `content` holds its bytes
    content: bytes | memoryview | None = field(default=None, hash=False)
    start: float | None = None  # seconds; None: the start of the file
    end: float | None = None  # seconds; None: the end of the file
    # Of a data set, which then decides when headers are read; None: `header` reads the file.
    index: HeaderIndex | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if (self.path is None) == (self.content is None):
            raise ValueError(f"video {self.name!r} needs a path or its bytes, one of the two")
        start, end = self.start or 0.0, math.inf if self.end is None else self.end
        if not 0 <= start < end:
            raise ValueError(f"video {self.name!r}: start must be 0 or more and before end, got {start} and {end}")

    def header(self) -> Header:
        """Returns the header, in about a millisecond. Raises ConfigError for most files that `load` cannot read."""
        if self.index is None or self.path is None:
            return self._read_header()
        return self.index.header(self.path, self._read_header)

    def _read_header(self) -> Header:
        return read_header(self.name, self.path if self.path is not None else self.content or b"")

    def duration(self) -> float | None:
        """Returns the seconds between `start` and `end`, within the file; None where it is unknown.

        The duration of the file is that of the header, or by a count of its frames. Raises ConfigError as `load` does.
        """
        seconds = self.header().seconds
        if seconds is None:
            seconds = counted_seconds(self.name, self.path if self.path is not None else bytes(self.content or b""))
        if seconds is None:
            return None
        return max(0.0, min(seconds, math.inf if self.end is None else self.end) - (self.start or 0.0))

    def load(self, sampling: FrameSampling) -> Frames:
        """Returns the frames that a sampling selects.

        Raises ConfigError for a file that is no video, has no frames or too few, is cut off, or is too large.
        """
        source = self.path if self.path is not None else bytes(self.content or b"")
        with opened(self.name, source) as file:
            first, last = self._window(file.num_frames, file.fps)
            try:
                indices = sampling.indices(first, last, file.fps)
                size = None if sampling.size is None else sampling.size.of(len(indices), *reversed(file.size))
            except ValueError as error:
                raise ConfigError(f"the video {self.name} {error}") from error
            height, width = size or (file.size[1], file.size[0])
            if len(indices) * height * width > MAX_CHOSEN_PIXELS:
                raise ConfigError(
                    f"{len(indices)} frames of {width} x {height} pixels of the video {self.name} are more than "
                    f"{MAX_CHOSEN_PIXELS:,} pixels; take fewer or smaller ones"
                )
            seconds, pixels = [], []
            for second, frame in file.frames(indices.tolist()):
                seconds.append(second)
                pixels.append(frame if sampling.size is None else sampling.size.resize(frame[None], len(indices))[0])
        shown = torch.tensor(seconds, dtype=torch.float64)
        return Frames(torch.stack(pixels), shown, indices, file.fps, last - first + 1)

    def _window(self, total: int, fps: float) -> tuple[int, int]:
        """Returns the first and the last frame between `start` and `end`, of `total` frames."""
        from qwen_vl_utils.vision_process import calculate_video_frame_range

        try:
            part = {"video_start": self.start, "video_end": self.end}
            first, last, _ = calculate_video_frame_range(part, total, fps)
        except ValueError as error:
            raise ConfigError(
                f"the video {self.name} has fewer than two frames between {self.start or 0:g} and "
                f"{total / fps if self.end is None else self.end:g} seconds; it is {total / fps:g} seconds long"
            ) from error
        return first, last

    def __reduce__(self) -> tuple[Any, ...]:  # a view cannot be sent to another process, its bytes can
        content = bytes(self.content) if self.content is not None else None
        return StoredClip, (self.name, self.path, content, self.start, self.end, self.index)


@dataclass(frozen=True)
class FrameClip:
    """A video as a list of pictures of one size, which were selected before.

    All pictures are used, the last one twice where their number is odd. Of more than the sampling's `max_frames` or
    `num_frames`, evenly spaced ones are selected.
    """

    name: str  # in errors
    pictures: tuple[Picture, ...]
    seconds: tuple[float, ...]  # the time of each picture, ascending

    def __post_init__(self) -> None:
        if not self.pictures or len(self.pictures) != len(self.seconds):
            raise ValueError(
                f"video {self.name!r} needs a time for each of its pictures, got {len(self.pictures)} pictures and "
                f"{len(self.seconds)} times"
            )
        pairs = zip((-math.inf, *self.seconds), (*self.seconds, math.inf), strict=True)
        if not all(before < after for before, after in pairs):
            raise ValueError(f"video {self.name!r}: times must be finite and grow, got {self.seconds}")

    def load(self, sampling: FrameSampling) -> Frames:
        """Returns the frames that a sampling selects. Raises ConfigError for pictures of different or wrong sizes."""
        from qwen_vl_utils.vision_process import floor_by_factor, round_by_factor
        from torchvision.transforms.v2.functional import pil_to_tensor

        total, wanted = len(self.pictures), sampling.num_frames
        most = floor_by_factor(sampling.max_frames, 2) if wanted is None else round_by_factor(wanted, 2)
        indices = torch.arange(total) if total <= most else torch.linspace(0, total - 1, most).round().long()
        seconds = torch.tensor(self.seconds, dtype=torch.float64)[indices]
        fps = (total - 1) / (self.seconds[-1] - self.seconds[0]) if total > 1 else 2.0
        if len(indices) % FRAME_FACTOR:
            indices = torch.cat([indices, indices[-1:]])
            seconds = torch.cat([seconds, seconds[-1:] + 1 / fps])
            total += 1
        sizes = {self.pictures[index].size for index in indices.tolist()}
        if len(sizes) > 1:
            raise ConfigError(f"the pictures of the video {self.name} have different sizes: {sorted(sizes)}")
        pixels = torch.stack([pil_to_tensor(self.pictures[index].load()) for index in indices.tolist()])
        try:
            return Frames(pixels, seconds - seconds[0], indices, fps, total).resized(sampling.size)
        except ValueError as error:
            raise ConfigError(f"the video {self.name} {error}") from error


@dataclass(frozen=True)
class ChangedClip(ABC):
    """A clip whose selected frames are changed, by a seed; they are decoded as those of the clip itself."""

    clip: Clip
    seed: int  # of the change

    @property
    def name(self) -> str:
        return self.clip.name

    def load(self, sampling: FrameSampling) -> Frames:
        """Returns the frames that a sampling selects, changed."""
        return self.changed(self.clip.load(sampling))

    @abstractmethod
    def changed(self, frames: Frames) -> Frames:
        """Returns selected frames of the clip in their other form."""


@dataclass(frozen=True)
class ShuffledClip(ChangedClip):
    """A clip whose selected frames are shuffled, while their times stay in order (T-GRPO, arXiv 2503.21776)."""

    def changed(self, frames: Frames) -> Frames:
        """Returns frames in an order from the seed, which is never the order of time unless all are the same frame."""
        count, generator = len(frames.indices), torch.Generator().manual_seed(self.seed)
        order = torch.arange(count)
        while len(frames.indices.unique()) > 1 and torch.equal(frames.indices[order], frames.indices):
            order = torch.randperm(count, generator=generator)
        return replace(frames, pixels=frames.pixels[order])


@dataclass(frozen=True)
class NoisyClip(ChangedClip):
    """A clip with Gaussian noise on its selected frames, of each pixel and frame its own (arXiv 2506.07464)."""

    std: float  # of the noise, where black is 0 and white is 1

    def changed(self, frames: Frames) -> Frames:
        """Returns frames with noise from the seed; values are cut to those that pixels have."""
        noise = torch.randn(frames.pixels.shape, generator=torch.Generator().manual_seed(self.seed))
        pixels = (frames.pixels + 255 * self.std * noise).round().clamp(0, 255).to(torch.uint8)
        return replace(frames, pixels=pixels)


def key_frames(clip: Clip, count: int) -> "list[tuple[float, Image]]":
    """Returns up to `count` pictures, evenly spaced over a clip, each with its second. Raises as `load` does."""
    from PIL import Image

    frames: Frames = clip.load(FrameSampling(fps=1e6, min_frames=FRAME_FACTOR, max_frames=max(FRAME_FACTOR, count)))
    pictures = [Image.fromarray(pixels.permute(1, 2, 0).numpy()) for pixels in frames.pixels]
    return list(zip(frames.seconds.tolist(), pictures, strict=True))
