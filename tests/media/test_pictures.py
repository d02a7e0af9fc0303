"""Pictures of prompts: opened late, in RGB, and named where they cannot be read."""

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.media import pictures
from mmrl.media.pictures import StoredPicture
from mmrl.system.errors import ConfigError
from tests.parameters import in_one_test


def encoded(image: Image.Image, **settings: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, **({"format": "PNG"} | settings))
    return buffer.getvalue()


RED = encoded(Image.new("RGB", (7, 5), (255, 0, 0)))


def test_a_file_and_its_bytes_are_the_same_picture(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    for picture in (
        StoredPicture("red", path=tmp_path / "red.png"),
        StoredPicture("red", content=RED),
        StoredPicture("red", content=memoryview(RED)),
    ):
        assert picture.size == (7, 5)
        image = picture.load()
        assert (image.mode, image.size, image.getpixel((6, 4))) == ("RGB", (7, 5), (255, 0, 0))


def test_a_file_is_not_opened_before_someone_looks(tmp_path: Path) -> None:
    picture = StoredPicture("later.png", path=tmp_path / "later.png")
    with pytest.raises(ConfigError, match=r"cannot read the image later\.png"):
        picture.load()
    (tmp_path / "later.png").write_bytes(RED)
    assert picture.load().size == (7, 5)


def test_a_picture_needs_a_path_or_bytes() -> None:
    for path, content in ((None, None), (Path("a"), b"")):
        with pytest.raises(ValueError, match="needs a path or its bytes, one of the two"):
            StoredPicture("both", path, content)


@in_one_test("content", [b"", b"not an image", RED[:40], b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_what_is_no_image_is_named(content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the image row 3"):
        StoredPicture("row 3", content=content).load()


def test_formats_beyond_those_of_photographs_and_screens_are_refused() -> None:
    targa = encoded(Image.new("RGB", (7, 5)), format="TGA")
    assert Image.open(BytesIO(targa)).size == (7, 5), "Pillow itself reads it"
    with pytest.raises(ConfigError, match="the image old: it is in none of the formats PNG, JPEG"):
        StoredPicture("old", content=targa).load()


def test_the_header_alone_says_the_size() -> None:
    noise = encoded(Image.effect_noise((200, 100), 80))
    assert StoredPicture("cut", content=noise[: len(noise) // 2]).size == (200, 100)
    with pytest.raises(ConfigError, match="cannot read the image cut"):
        StoredPicture("cut", content=noise[: len(noise) // 2]).load()


def test_an_image_that_would_fill_the_memory_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_PIXELS", 34)
    with pytest.raises(ConfigError, match="the image red has 7 x 5 pixels; at most 34 are allowed"):
        StoredPicture("red", content=RED).load()
    monkeypatch.setattr(pictures, "MAX_PIXELS", 35)
    assert StoredPicture("red", content=RED).load().size == (7, 5)


def test_the_bound_of_pillow_is_above_ours() -> None:
    assert Image.MAX_IMAGE_PIXELS is not None and pictures.MAX_PIXELS <= Image.MAX_IMAGE_PIXELS


def test_what_is_transparent_becomes_white() -> None:
    drawing = Image.new("RGBA", (2, 1), (0, 0, 0, 0))  # transparent black, as diagrams are stored
    drawing.putpixel((1, 0), (0, 0, 255, 255))
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([0, 0, 0, 0, 0, 255])
    palette.putpixel((1, 0), 1)
    for content in (encoded(drawing), encoded(palette, transparency=0)):
        image = StoredPicture("drawing", content=content).load()
        assert (image.mode, image.getpixel((0, 0)), image.getpixel((1, 0))) == ("RGB", (255, 255, 255), (0, 0, 255))


def test_a_picture_can_be_sent_to_another_process() -> None:
    picture = StoredPicture("red", content=memoryview(RED))
    again = pickle.loads(pickle.dumps(picture))
    assert again == picture and again.load().size == (7, 5)


def test_pictures_in_arrows_memory_are_told_apart_and_can_be_keys() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="comes with datasets")
    one, same, other = (StoredPicture("image", content=pyarrow.py_buffer(content)) for content in (b"a", b"a", b"b"))
    assert one == same and one != other
    assert len({one, same, other}) == 2


def test_greys_of_sixteen_bits_keep_their_shades() -> None:
    deep = Image.new("I;16", (3, 1))
    for column, grey in enumerate((0, 0x8000, 0xFFFF)):
        deep.putpixel((column, 0), grey)
    for settings in ({}, {"format": "TIFF"}):
        image = StoredPicture("deep", content=encoded(deep, **settings)).load()
        assert [image.getpixel((column, 0)) for column in range(3)] == [(0,) * 3, (128,) * 3, (255,) * 3]


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pixels_of_no_known_range_are_refused_at_the_header(mode: str) -> None:
    picture = StoredPicture("depth.tiff", content=encoded(Image.new(mode, (7, 5)), format="TIFF"))
    for look in (lambda: picture.size, picture.load):
        with pytest.raises(ConfigError, match=rf"the image depth\.tiff has pixels of mode '{mode}', .* 8 or 16 bits"):
            look()
