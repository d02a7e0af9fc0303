"""The header of a video file, which is enough to refuse most broken files without decoding a frame."""

from io import BytesIO
from pathlib import Path

from mmrl.media.header_index import Header
from mmrl.media.pyav_reader import PyavFile, opened_stream
from mmrl.media.readers import check_signature, check_size, failures


def read_header(name: str, source: Path | bytes | memoryview) -> Header:
    """Returns the header of a video, from its path or its bytes, in about a millisecond.

    Raises ConfigError for a file that is no video, without a picture, with too large frames, or without its index. A
    file that is cut off behind its index passes: its frames must be counted.
    """
    check_signature(name, source)
    file = source if isinstance(source, Path) else BytesIO(source)
    with failures(name):
        container, stream = opened_stream(file)
        with container:
            size = stream.codec_context.width, stream.codec_context.height
            check_size(name, size)
            if stream.duration is not None:
                return Header(float(stream.duration * stream.time_base), size)
            return Header(None if container.duration is None else container.duration / 10**6, size)


def counted_seconds(name: str, source: Path | bytes) -> float | None:
    """Returns the duration of a video in seconds by a count of its frames; None without a frame rate.

    This is for headers without a duration. Raises as `read_header` does.
    """
    with failures(name):
        file = PyavFile(source)
        return file.num_frames / file.fps if file.fps > 0 else None
