"""The readers of video files, torchcodec, PyAV and decord, behind one protocol and with one kind of error.

qwen-vl-utils reads with the same libraries, but gives no times of frames, has no limits for hostile files, holds all
frames in full size, reads no bytes, and takes another library where the first one fails.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from mmrl.media.matroska import START, announced_length
from mmrl.media.pictures import MAX_PIXELS
from mmrl.media.pyav_reader import PyavFile
from mmrl.system.errors import ConfigError

Reader = Literal["auto", "pyav", "torchcodec", "decord"]
MAX_FILE_PIXELS = 10**12  # of all frames of a file together: four hours of 1920 x 1080 at 30 frames a second
# Offsets and bytes by which files of these formats begin. Other files are not opened: FFmpeg also reads formats that
# are lists of files or addresses.
_SIGNATURES: tuple[tuple[int, bytes], ...] = (
    *((4, box) for box in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")),  # MP4, MOV
    (0, b"\x1aE\xdf\xa3"),  # Matroska, WebM
    (8, b"AVI "),
    (0, b"G"),  # MPEG-TS by its sync byte, and GIF
    (0, b"\x00\x00\x01\xba"),  # MPEG-PS
    (0, b"FLV\x01"),
    (0, b"OggS"),
    (0, b"0&\xb2u\x8ef\xcf\x11"),  # WMV, ASF
)
_FORMATS = "MP4, MOV, WebM, Matroska, AVI, GIF, MPEG, FLV, Ogg or WMV"


class VideoFile(Protocol):
    """An opened video file."""

    num_frames: int  # counted in the file
    num_announced: int | None  # frames by the header; None: unknown
    fps: float  # frames per second, on average
    size: tuple[int, int]  # width and height in pixels

    def frames(self, indices: Sequence[int]) -> Iterator[tuple[float, Tensor]]:
        """Yields the seconds since the first frame, and uint8 [3, H, W] RGB, of frames in ascending order."""
        ...


@contextmanager
def opened(name: str, source: Path | bytes, reader: Reader) -> Iterator[VideoFile]:
    """Opens a video, a path or bytes, by a reader; exceptions inside of the block become ConfigErrors that name both.

    Raises ConfigError for a file that is no video, is cut off or empty, or would take too long to decode.
    """
    check_signature(name, source)
    chosen = usable(reader)
    with failures(name, chosen):
        file = _OPEN[chosen](source)
        _check(name, file)
        yield file


@contextmanager
def failures(name: str, reader: Reader) -> Iterator[None]:
    """Turns exceptions of a reader's library in the block into ConfigErrors that name the video and the reader."""
    module, errors = _LIBRARIES[reader]
    library = import_module(module)
    caught = tuple(getattr(library, error) for error in errors)
    try:
        yield
    except ConfigError:
        raise
    except (OSError, ValueError, RuntimeError, IndexError, EOFError, *caught) as error:
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(f"cannot read the video {name} ({reader}): {words[0][:300]}") from error


def usable(reader: Reader) -> Reader:
    """Returns the reader that a setting names; for `auto`, the first reader whose libraries can be loaded.

    Raises ConfigError where the libraries of the reader, or of all readers, cannot be loaded.
    """
    problems = []
    for name in _LIBRARIES if reader == "auto" else (reader,):
        problem = _problem(name)
        if problem is None:
            return name
        problems.append(f"{name}: {problem}")
    raise ConfigError(
        f"no reader of videos can be used ({'; '.join(problems)}); install one with: pip install 'mmrl[video]'"
    )


def is_usable(reader: Reader) -> bool:
    """Returns whether the libraries of a reader can be loaded."""
    return _problem(reader) is None


def _problem(reader: Reader) -> str | None:
    """Returns why a reader cannot be used on this machine; None where it can."""
    try:
        module = import_module(_LIBRARIES[reader][0])
    except (ImportError, OSError, RuntimeError) as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    if reader == "torchcodec" and import_module("torchcodec").ffmpeg_major_version is None:
        return "it finds no shared libraries of FFmpeg, which it does not come with"
    assert module is not None
    return None


def check_signature(name: str, source: Path | bytes | memoryview) -> None:
    """Raises ConfigError for a file that is missing, is no video of a known format, or is shorter than it announces."""
    if not isinstance(source, Path):
        start, length = bytes(source[:START]), len(source)
    else:
        try:
            with source.open("rb") as file:
                start, length = file.read(START), os.fstat(file.fileno()).st_size
        except OSError as error:
            raise ConfigError(f"cannot read the video {name}: {error.strerror or error}") from error
    if not start:
        raise ConfigError(f"cannot read the video {name}: it is empty")
    if not any(start[at : at + len(sign)] == sign for at, sign in _SIGNATURES):
        raise ConfigError(f"cannot read the video {name}: it is no video of the formats {_FORMATS}")
    announced = announced_length(start)
    if announced is not None and length < announced:
        raise ConfigError(f"the video {name} is cut off: it has {length:,} of {announced:,} bytes")


def _check(name: str, file: VideoFile) -> None:
    """Raises ConfigError for an opened file without frames or a frame rate, cut off, or too large."""
    width, height = file.size
    if file.num_frames < 1:
        raise ConfigError(f"the video {name} has no frames")
    if file.num_announced is not None and file.num_frames < file.num_announced:
        raise ConfigError(f"the video {name} is cut off: it has {file.num_frames} of {file.num_announced} frames")
    if not 0 < file.fps < float("inf"):
        raise ConfigError(f"the video {name} has no frame rate")
    check_size(name, file.size)
    if width * height * file.num_frames > MAX_FILE_PIXELS:
        raise ConfigError(
            f"the video {name} has {file.num_frames} frames of {width} x {height} pixels; "
            f"at most {MAX_FILE_PIXELS:,} pixels are allowed in a file: cut it into parts"
        )


def check_size(name: str, size: tuple[int, int]) -> None:
    """Raises ConfigError for a width and height of frames above `MAX_PIXELS`."""
    width, height = size
    if width * height > MAX_PIXELS:
        raise ConfigError(f"the video {name} has {width} x {height} pixels; at most {MAX_PIXELS:,} are allowed")


@dataclass
class _TorchcodecFile:
    """A video file opened by torchcodec, which scans the whole file for frames."""

    decoder: Any

    def __post_init__(self) -> None:
        metadata = self.decoder.metadata
        self.num_frames = metadata.num_frames_from_content or metadata.num_frames or 0
        self.num_announced = metadata.num_frames_from_header
        self.fps = float(metadata.average_fps or 0)
        self.size = (metadata.width, metadata.height)

    def frames(self, indices: Sequence[int]) -> Iterator[tuple[float, Tensor]]:
        first = self.decoder.get_frame_at(0).pts_seconds  # of some formats it is not 0
        for index in indices:
            frame = self.decoder.get_frame_at(index)
            yield frame.pts_seconds - first, frame.data


@dataclass
class _DecordFile:
    """A video file opened by decord, which has had no release since 2021 and hangs on some broken files."""

    reader: Any

    def __post_init__(self) -> None:
        self.num_frames = len(self.reader)
        self.num_announced: int | None = None
        self.fps = float(self.reader.get_avg_fps())
        height, width = self.reader[0].shape[:2] if self.num_frames else (0, 0)
        self.size = (width, height)

    def frames(self, indices: Sequence[int]) -> Iterator[tuple[float, Tensor]]:
        first = float(self.reader.get_frame_timestamp(0)[0])
        for index in indices:
            pixels = torch.from_numpy(self.reader.get_batch([index]).asnumpy()[0]).permute(2, 0, 1)
            yield float(self.reader.get_frame_timestamp(index)[0]) - first, pixels


def _open_torchcodec(source: Path | bytes) -> VideoFile:
    decoders = import_module("torchcodec.decoders")
    return _TorchcodecFile(decoders.VideoDecoder(source if isinstance(source, bytes) else str(source.absolute())))


def _open_decord(source: Path | bytes) -> VideoFile:
    decord = import_module("decord")
    file = BytesIO(source) if isinstance(source, bytes) else str(source.absolute())
    return _DecordFile(decord.VideoReader(file, ctx=decord.cpu(0), num_threads=1))


# In the order of `auto`: the module, and those of its exceptions that inherit from none of Python's usual ones.
_LIBRARIES: dict[Reader, tuple[str, tuple[str, ...]]] = {
    "torchcodec": ("torchcodec.decoders", ()),
    "pyav": ("av", ("FFmpegError",)),
    "decord": ("decord", ("DECORDError",)),
}
_OPEN: dict[Reader, Callable[[Path | bytes], VideoFile]] = {
    "torchcodec": _open_torchcodec,
    "pyav": PyavFile,
    "decord": _open_decord,
}
