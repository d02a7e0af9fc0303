"""The images of prompts: stored as files or bytes, opened when a policy or a reward needs them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mmrl.media.header_index import HeaderIndex
from mmrl.system.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

MAX_PIXELS = 80_000_000  # of a decoded image: two screens of 8K; below the size at which Pillow itself warns
# Pillow can read more formats, but some of them start other programs (EPS)
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "ICO")
# The exceptions of Pillow for broken files, which depend on the format; `Warning` where warnings are errors
BROKEN = (OSError, SyntaxError, ValueError, RuntimeError, EOFError, Warning)
WITHOUT_RANGE = ("I", "F")  # modes of Pillow, which clips both at 0 and 255: mostly a white or a black image


# What an image of a prompt is for: the picture to edit or the first frame of a video, a further picture to take from,
# the last frame of a video, the places to change (white), what to follow (edges, depth, a pose).
Role = Literal["image", "reference", "last_image", "mask", "control"]


class Picture(Protocol):
    """An image of a prompt."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, mostly without decoding the pixels; raises as `load` does."""
        ...

    def load(self) -> "Image":
        """Returns the image in RGB. Raises ConfigError, with the image's name, where it cannot be read."""
        ...


class Clip(Protocol):
    """A video of a prompt, hashable. `mmrl.media.video` has the clips of files, bytes and lists of frames."""

    @property
    def name(self) -> str:
        """Its name in errors."""
        ...

    def load(self, sampling: Any) -> Any:
        """Returns the frames (`mmrl.media.video.Frames`) that a `FrameSampling` selects.

        Raises ConfigError for a clip that cannot be read.
        """
        ...


@dataclass(frozen=True)
class StoredPicture:
    """An image that is stored in a file, or in memory.

    `size` and `load` raise ConfigError for a file that is no image, is cut off, has more than `MAX_PIXELS` pixels, or
    has pixels of an unknown range.
    """

    name: str  # in errors
    path: Path | str | None = None  # of the file; None: `content` holds its bytes
    content: bytes | memoryview | None = field(default=None, hash=False)  # compared, but Arrow's views have no hash
    # Of a data set, which then decides when headers are read; None: `size` reads the file.
    index: HeaderIndex | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if (self.path is None) == (self.content is None):
            raise ValueError(f"picture {self.name!r} needs a path or its bytes, one of the two")

    @property
    def called(self) -> str:
        """Its name in a sentence, where a name such as "image 2" already says that it is an image."""
        return f"the {self.name}" if self.name.startswith("image ") else f"the image {self.name}"

    def load(self) -> "Image":
        """Returns the image in RGB; transparent parts become white."""
        with self._opened() as opened:
            image = _eight_bit(opened)
            if "A" not in image.getbands() and "transparency" not in image.info:
                return image.convert("RGB")
            from qwen_vl_utils.vision_process import to_rgb  # of other modes than RGBA it drops what is transparent

            page: Image = to_rgb(image.convert("RGBA"))
            return page

    @cached_property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, from the header alone."""
        if self.index is None or self.path is None:
            return self._read_size()
        return self.index.size(self.path, self._read_size)

    @property
    def is_read(self) -> bool:
        """Whether the header was read already, or is nobody's to read later."""
        return self.index is None or "size" in vars(self)

    def _read_size(self) -> tuple[int, int]:
        with self._opened() as image:
            return image.size

    @contextmanager
    def _opened(self) -> "Iterator[Image]":
        from PIL import Image, UnidentifiedImageError
        from pyarrow import BufferReader

        try:
            file = self.path if self.path is not None else BufferReader(self.content or b"")  # without a copy
            with Image.open(file, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ConfigError(
                        f"the image {self.name} has {image.width} x {image.height} pixels; "
                        f"at most {MAX_PIXELS:,} are allowed"
                    )
                if image.mode in WITHOUT_RANGE:
                    raise ConfigError(
                        f"the image {self.name} has pixels of mode {image.mode!r}, whole or real numbers without a "
                        "largest; save it with 8 or 16 bits"
                    )
                yield image
        except ConfigError:
            raise
        except UnidentifiedImageError as error:  # its own words show the address of an object
            raise ConfigError(
                f"cannot read {self.called}: it is in none of the formats {', '.join(FORMATS)}"
            ) from error
        except (*BROKEN, Image.DecompressionBombError) as error:
            raise ConfigError(f"cannot read {self.called}: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:  # a view cannot be sent to another process, its bytes can
        content = bytes(self.content) if self.content is not None else None
        return StoredPicture, (self.name, self.path, content, self.index)


def as_tensor(image: "Image") -> "Tensor":
    """Returns an image as [3, H, W] float32 in [0, 1], RGB, the form that rewards see."""
    import numpy
    import torch

    return torch.from_numpy(numpy.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255


def _eight_bit(image: "Image") -> "Image":
    """Returns an image of 16-bit greys with 8 bits, which Pillow would clip to white; other images as they are."""
    if not image.mode.startswith("I;16"):
        return image
    import numpy
    from PIL import Image

    return Image.fromarray((numpy.asarray(image) >> 8).astype(numpy.uint8))
