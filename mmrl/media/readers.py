"""Video files opened by PyAV, with limits for hostile files and one kind of error.

Not by qwen-vl-utils, whose readers give no times of frames, have no limits, hold all frames in full size, read no
bytes, and take another library where the first one fails.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmrl.media.matroska import START, announced_length
from mmrl.media.pictures import MAX_PIXELS
from mmrl.media.pyav_reader import PyavFile
from mmrl.system.errors import ConfigError

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


@contextmanager
def opened(name: str, source: Path | bytes) -> Iterator[PyavFile]:
    """Opens a video, a path or bytes; exceptions inside of the block become ConfigErrors that name it.

    Raises ConfigError for a file that is no video, is cut off or empty, or would take too long to decode.
    """
    check_signature(name, source)
    with failures(name):
        file = PyavFile(source)
        _check(name, file)
        yield file


@contextmanager
def failures(name: str) -> Iterator[None]:
    """Turns exceptions of PyAV in the block into ConfigErrors that name the video."""
    from av.error import FFmpegError

    try:
        yield
    except ConfigError:
        raise
    except (OSError, ValueError, RuntimeError, IndexError, EOFError, FFmpegError) as error:
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(f"cannot read the video {name} (pyav): {words[0][:300]}") from error


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


def _check(name: str, file: PyavFile) -> None:
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
