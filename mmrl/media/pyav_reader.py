"""The reader of video files by PyAV: lists frames without decoding them, then decodes from the nearest key frame."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MAX_PACKETS = 10_000_000


class PyavFile:
    """A video file opened by PyAV. Frames are numbered in the order in which they are shown."""

    def __init__(self, source: Path | bytes) -> None:
        self._container, self._stream = opened_stream(BytesIO(source) if isinstance(source, bytes) else source)
        self._stream.thread_type = "AUTO"
        self._unit = self._stream.time_base  # seconds, of the times below
        self._times, self._keys = self._listed()
        self.num_frames = len(self._times)
        self.num_announced: int | None = self._stream.frames or None
        self.fps = float(self._stream.average_rate or 0)
        self.size = (self._stream.codec_context.width, self._stream.codec_context.height)

    def _listed(self) -> tuple[list[int], list[int]]:
        """Returns the times of all frames, and those of key frames, which need no other frame to be decoded."""
        times, keys = [], []
        for number, packet in enumerate(self._container.demux(self._stream)):
            time = packet.pts if packet.pts is not None else packet.dts
            if time is None or packet.is_discard:  # the last, empty one; frames that an edit list cuts off
                continue
            if number >= MAX_PACKETS:
                raise ValueError(f"it has more than {MAX_PACKETS:,} frames")
            times.append(time)
            if packet.is_keyframe:
                keys.append(time)
        return sorted(times), sorted(keys)

    def frames(self, indices: Sequence[int]) -> Iterator[tuple[float, Tensor]]:
        """Yields the seconds since the first frame, and uint8 [3, H, W] RGB, of frames in ascending order."""
        decoding: Iterator[Any] = iter(())
        shown, last = None, None  # the last frame that was decoded, and when it is shown
        for index in indices:
            time = self._times[index]
            key = self._keys[max(0, bisect_right(self._keys, time) - 1)] if self._keys else self._times[0]
            if last is None or key > last or time < last:
                decoding = self._decoded_from(key)
                shown, last = None, None
            while last is None or last < time:
                shown = next(decoding, None)
                if shown is None:
                    raise ValueError(
                        f"frame {index} of {self.num_frames} cannot be decoded; the file is cut off or broken"
                    )
                last = shown.pts
            if last != time:
                raise ValueError(f"frame {index} of {self.num_frames} cannot be decoded; the file is broken")
            yield float((time - self._times[0]) * self._stream.time_base), _pixels(shown, self.size)

    def _decoded_from(self, key: int) -> Iterator[Any]:
        """Yields frames from a key frame on; of formats whose seek lands too late, frames from the start on."""
        self._container.seek(key, stream=self._stream)
        decoding = self._container.decode(self._stream)
        first = next(decoding, None)
        if first is None or first.pts is None or first.pts > key:
            self._container.seek(self._times[0] - 10**6, stream=self._stream)
            decoding = self._container.decode(self._stream)
            first = next(decoding, None)
        if first is not None:
            yield first
            yield from decoding


def opened_stream(file: Path | Any) -> tuple[Any, Any]:
    """Returns the container and the first video stream of a path or an open file.

    Raises ValueError without a stream.
    """
    import av

    container: Any = av.open(str(file.absolute()) if isinstance(file, Path) else file)
    streams = [stream for stream in container.streams.video if "attached_pic" not in str(stream.disposition)]
    if not streams:
        raise ValueError("it has no video stream, perhaps sound alone")
    return container, streams[0]


def _pixels(frame: Any, size: tuple[int, int]) -> Tensor:
    """Returns a frame as uint8 [3, H, W] of the stream's size, upright: phones store rotated pictures and the angle."""
    width, height = size
    pixels = torch.from_numpy(frame.to_ndarray(format="rgb24", width=width, height=height))
    turns = round(frame.rotation / 90) % 4
    return torch.rot90(pixels, turns).permute(2, 0, 1) if turns else pixels.permute(2, 0, 1)
