"""Video files whose frames say their own number, written by PyAV."""

from collections.abc import Sequence
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import torch
from torch import Tensor

from mmrl.media.video import StoredClip

WIDTH, HEIGHT, BARS = 64, 48, 8


def coded(number: int, width: int = WIDTH, height: int = HEIGHT) -> Tensor:
    """[H, W, 3] uint8: eight bars, white for the ones of the number in binary, the highest first."""
    bits = torch.tensor([number >> (BARS - 1 - bar) & 1 for bar in range(BARS)])
    return (bits * 255).to(torch.uint8).repeat_interleave(width // BARS)[None, :, None].expand(height, -1, 3)


def numbers(pixels: Tensor) -> list[int]:
    """What frames [F, 3, H, W] say."""
    bars = pixels.float().mean((1, 2)).unflatten(1, (BARS, -1)).mean(2) > 127  # [F, BARS]
    return [sum(int(bit) << (BARS - 1 - bar) for bar, bit in enumerate(row)) for row in bars.tolist()]


def encoded(
    num_frames: int,
    fps: Fraction | int = 10,
    *,
    form: str = "mp4",
    codec: str = "libx264",
    at: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> bytes:
    """A video of numbered frames, a key frame every 5; `at`: when each is shown, in thousandths of a second."""
    with TemporaryDirectory() as folder:  # an index at the start is written by reading the file again
        path = Path(folder) / "clip"
        with av.open(str(path), "w", format=form, options=options or {}) as container:
            stream: Any = container.add_stream(codec, rate=fps)
            stream.width, stream.height = size
            stream.pix_fmt, stream.gop_size = "yuv420p", 5
            if at is not None:
                stream.codec_context.time_base = Fraction(1, 1000)
            for number in range(num_frames):
                frame = av.VideoFrame.from_ndarray(coded(number, *size).numpy(), format="rgb24")
                if at is not None:
                    frame.pts, frame.time_base = at[number], Fraction(1, 1000)
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return path.read_bytes()


def sound() -> bytes:
    """An MP4 file with a sound and no picture."""
    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame(format="fltp", layout="mono", samples=1024)
        frame.rate = 8000
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def clip(num_frames: int, fps: int = 10, **settings: Any) -> StoredClip:
    """A clip of numbered frames."""
    return StoredClip(f"{num_frames} frames", content=encoded(num_frames, fps, **settings))


def in_file(folder: Path, content: bytes, name: str = "clip.mp4") -> Path:
    (folder / name).write_bytes(content)
    return folder / name
