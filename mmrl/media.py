"""Images that belong to prompts: kept as files or bytes, opened when a policy looks at them."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mmrl.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image


class Picture(Protocol):
    """An image of a prompt."""

    def load(self) -> "Image":
        """The image in RGB; raises ConfigError, with its name, where it cannot be read."""
        ...


@dataclass(frozen=True)
class StoredPicture:
    """An image file, or the bytes of one; `name` is what errors call it."""

    name: str
    path: Path | None = None
    content: bytes | None = None

    def __post_init__(self) -> None:
        if (self.path is None) == (self.content is None):
            raise ValueError(f"picture {self.name!r} needs a path or its bytes, one of the two")

    def load(self) -> "Image":
        from PIL import Image, UnidentifiedImageError

        try:
            source = self.path if self.path is not None else BytesIO(self.content or b"")
            with Image.open(source) as opened:
                return opened.convert("RGB")
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError, ValueError) as error:
            raise ConfigError(f"cannot read the image {self.name}: {error}") from error
