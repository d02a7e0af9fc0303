"""What a video file says of itself at its start: enough to refuse most broken ones without decoding a frame."""

from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from mmrl.media.pictures import BytesFile
from mmrl.media.pyav_reader import PyavFile, opened_stream
from mmrl.media.readers import check_signature, check_size, failures, is_usable


@dataclass(frozen=True)
class Header:
    """Of the first video stream of a file; all of it unknown where PyAV is not installed."""

    seconds: float | None = None  # how long it is, where the header says so
    size: tuple[int, int] | None = None  # width and height in pixels


def read_header(name: str, source: Path | bytes | memoryview) -> Header:
    """The header of a file or its bytes, in about a millisecond; without PyAV only its first bytes are looked at.

    Raises ConfigError for what is no video, has no picture or one that is too large, or has lost its index. A file that
    is cut off behind its index is found where its frames are counted.
    """
    check_signature(name, source)
    if not is_usable("pyav"):
        return Header()
    file = source if isinstance(source, Path) else BufferedReader(BytesFile(source))
    with failures(name, "pyav"):
        container, stream = opened_stream(file)
        with container:
            size = stream.codec_context.width, stream.codec_context.height
            check_size(name, size)
            if stream.duration is not None:
                return Header(float(stream.duration * stream.time_base), size)
            return Header(None if container.duration is None else container.duration / 10**6, size)


def counted_seconds(name: str, source: Path | bytes) -> float | None:
    """How long a file is whose header does not say it, by its frames; None without PyAV. Raises as `read_header`."""
    if not is_usable("pyav"):
        return None
    with failures(name, "pyav"):
        file = PyavFile(source)
        return file.num_frames / file.fps if file.fps > 0 else None
