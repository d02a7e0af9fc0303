"""Arrays of pixels as pictures, and back."""

from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy
from PIL import Image

from mmrl.media.pictures import StoredPicture

if TYPE_CHECKING:
    from mmrl.media.pictures import Picture


def as_picture(pixels: Any, name: str) -> StoredPicture:
    """Returns an array [H, W, 3] of uint8, RGB, as a PNG; raises ValueError for other arrays."""
    array = numpy.asarray(pixels)
    if array.dtype != numpy.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise ValueError(f"{name}: a picture is an array [H, W, 3] of uint8, got {list(array.shape)} of {array.dtype}")
    file = BytesIO()
    Image.fromarray(numpy.ascontiguousarray(array)).save(file, "PNG")
    return StoredPicture(name, content=file.getvalue())


def as_pixels(picture: "Picture") -> "numpy.ndarray[Any, numpy.dtype[numpy.uint8]]":
    """Returns the pixels of a picture [H, W, 3], uint8, RGB."""
    return numpy.array(picture.load(), dtype=numpy.uint8)
