"""Media on the wire: files in base64, tensors as safetensors; each read within a limit of bytes.

One medium is an object with one entry:
    {"file": base64}          a PNG, JPEG, WebP ... of an image, an MP4, WebM ... of a video, by its content
    {"safetensors": base64}   a safetensors file of one tensor, called "value"
    {"tensor": name}          a tensor of the safetensors file that is the body of the request
Images are [3, H, W] and videos [F, 3, H, W], RGB, real numbers in [0, 1] or uint8; sound is [channels, S] in [-1, 1].
"""

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from mmrl.media.pictures import Picture, StoredPicture, as_tensor
from mmrl.media.readers import opened
from mmrl.system.errors import ConfigError

Pixels = Literal["float32", "uint8"]
VALUE = "value"  # the tensor of a safetensors file that holds one medium
_FORMS = ("file", "safetensors", "tensor")
_DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
_PIXEL = 12  # bytes of one pixel as rewards see it: three float32


class Unreadable(ValueError):
    """A medium that cannot be read. The message says what was wrong, what was got, what is allowed."""


def pixels_of(media: Tensor, pixels: Pixels) -> Tensor:
    """Returns images or videos, real numbers in [0, 1], as they are sent; uint8 rounds to 256 steps, as a PNG does."""
    plain = media.detach().cpu().contiguous()
    return plain.float() if pixels == "float32" else (plain.float().clamp(0, 1) * 255).round().to(torch.uint8)


def picture_content(picture: Picture) -> bytes:
    """Returns the file of a picture as it is stored, or as a PNG where it is not stored as a file.

    Raises ConfigError for a picture that cannot be read.
    """
    if isinstance(picture, StoredPicture):
        try:
            return bytes(picture.content) if picture.path is None else Path(picture.path).read_bytes()  # type: ignore[arg-type]
        except OSError as error:
            raise ConfigError(f"cannot read {picture.called}: {error}") from error
    file = BytesIO()
    picture.load().save(file, format="PNG")
    return file.getvalue()


def file_medium(content: bytes) -> dict[str, str]:
    """Returns a file as a medium."""
    return {"file": base64.b64encode(content).decode()}


def safetensors_medium(value: Tensor) -> dict[str, str]:
    """Returns a tensor as a medium by itself."""
    content = safetensors.torch.save({VALUE: value.contiguous()})
    return {"safetensors": base64.b64encode(content).decode()}


@dataclass
class MediaReader:
    """Reads the media of one item. All of them together, as files and decoded, have at most `limit` bytes.

    Raises Unreadable for media that are too large, broken, of another form or shape, or out of their range.
    """

    tensors: Mapping[str, Tensor]  # of the request's body
    limit: int
    _used: int = field(default=0, init=False)

    def image(self, medium: Any) -> Tensor:
        """Returns an image [3, H, W] float32 in [0, 1]."""
        form, content = self._opened(medium)
        if form == "file":
            picture = self._picture("image", content)
            try:
                return as_tensor(picture.load())
            except ConfigError as error:
                raise Unreadable(str(error)) from error
        return _in_range(self._tensor(form, content, "image", (3, None, None)), 0.0)

    def picture(self, medium: Any, name: str) -> StoredPicture:
        """Returns an image of a prompt as the file that was sent; `name` is its name in errors."""
        form, content = self._opened(medium)
        if form != "file":
            raise Unreadable(f'{name} must be {{"file": base64}}, got {form!r}')
        return self._picture(name, content)

    def video(self, medium: Any) -> tuple[Tensor, float | None]:
        """Returns a video [F, 3, H, W] float32 in [0, 1], and its frames per second where it is a file."""
        form, content = self._opened(medium)
        if form != "file":
            return _in_range(self._tensor(form, content, "video", (None, 3, None, None)), 0.0), None
        try:
            with opened("video", content) as video:
                width, height = video.size
                self._use(video.num_frames * width * height * _PIXEL)
                frames = [pixels for _, pixels in video.frames(list(range(video.num_frames)))]
                return torch.stack(frames).float() / 255, video.fps
        except ConfigError as error:
            raise Unreadable(str(error)) from error

    def sound(self, medium: Any) -> Tensor:
        """Returns sound [channels, S] float32 in [-1, 1]."""
        form, content = self._opened(medium)
        if form == "file":
            raise Unreadable("audio must be safetensors or a tensor of the body, got a file")
        value = self._tensor(form, content, "audio", (None, None))
        if value.dtype == torch.uint8:
            raise Unreadable("audio must be real numbers in [-1, 1], got uint8")
        return _in_range(value, -1.0)

    def _opened(self, medium: Any) -> tuple[str, Any]:
        """Returns the form of a medium, and its bytes or the name of its tensor."""
        if not isinstance(medium, dict) or len(medium) != 1 or next(iter(medium)) not in _FORMS:
            got = sorted(map(str, medium)) if isinstance(medium, dict) else type(medium).__name__
            raise Unreadable(f"a medium is an object with one of {', '.join(_FORMS)}, got {got}")
        ((form, value),) = medium.items()
        if not isinstance(value, str):
            raise Unreadable(f"a medium's {form} must be a text, got {type(value).__name__}")
        if form == "tensor":
            return form, value
        self._use(len(value) * 3 // 4)
        try:
            return form, base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise Unreadable(f"a medium's {form} is no base64: {error}") from error

    def _use(self, count: int) -> None:
        self._used += count
        if self._used > self.limit:
            raise Unreadable(f"the item has more than {self.limit:,} bytes of media, the limit of the server")

    def _picture(self, name: str, content: bytes) -> StoredPicture:
        picture = StoredPicture(name, content=content)
        try:
            width, height = picture.size
        except ConfigError as error:
            raise Unreadable(str(error)) from error
        self._use(width * height * _PIXEL)
        return picture

    def _tensor(self, form: str, content: Any, name: str, shape: tuple[int | None, ...]) -> Tensor:
        """Returns a tensor, checked for its type and its shape (None: any size above 0), as it was sent."""
        value = self.tensors.get(content) if form == "tensor" else _alone(content)
        if value is None:
            raise Unreadable(f"the body has no tensor {content!r}; it has {', '.join(sorted(self.tensors)) or 'none'}")
        fits = value.ndim == len(shape) and all(
            size > 0 and wanted in (None, size) for size, wanted in zip(value.shape, shape, strict=True)
        )
        if not fits or value.dtype not in _DTYPES:
            wanted_shape = ", ".join("*" if size is None else str(size) for size in shape)
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            raise Unreadable(f"{name} must be [{wanted_shape}] of {allowed}, got {value.dtype} {list(value.shape)}")
        self._use(4 * math.prod(value.shape))
        return value


def _alone(content: bytes) -> Tensor:
    """Returns the one tensor of a safetensors file."""
    try:
        values = safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError) as error:  # KeyError: a type that torch does not have
        raise Unreadable(f"a medium is no safetensors file: {error}") from error
    if set(values) != {VALUE}:
        raise Unreadable(f"a safetensors file of a medium holds one tensor, {VALUE!r}, got {sorted(values)}")
    return values[VALUE]


def _in_range(value: Tensor, low: float) -> Tensor:
    """Returns media as float32. Raises Unreadable outside of [low, 1]; NaN is left to the reward, which judges it."""
    if value.dtype == torch.uint8:
        return value.float() / 255
    values = value.float()
    if (values < low).any() or (values > 1).any():
        raise Unreadable(
            f"real numbers of media are in [{low:g}, 1], got {float(values.min()):g} to {float(values.max()):g}"
        )
    return values
