"""Every way in which a row can hold an image, and the paths that are refused."""

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.core.config import DatasetSettings
from mmrl.prompts.datasets import load_dataset_prompts
from mmrl.prompts.row_pictures import BadRow, PictureFolder
from mmrl.system.errors import ConfigError
from tests.parameters import in_one_test

IMAGE = Image.new("RGB", (9, 6), (0, 128, 0))


def png() -> bytes:
    buffer = BytesIO()
    IMAGE.save(buffer, format="PNG")
    return buffer.getvalue()


def jpeg() -> bytes:
    buffer = BytesIO()
    IMAGE.save(buffer, format="JPEG")
    return buffer.getvalue()


def text(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images" / "inner").mkdir(parents=True)
    (tmp_path / "images" / "inner" / "a.png").write_bytes(png())
    (tmp_path / "secret.png").write_bytes(png())
    (tmp_path / "images" / "link.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "images" / "near.png").symlink_to("inner/a.png")
    (tmp_path / "images" / "circle.png").symlink_to("circle.png")
    (tmp_path / "images" / "broken.png").write_bytes(png()[:20])
    return tmp_path / "images"


@pytest.mark.parametrize(
    "value",
    [
        "inner/a.png",
        "./inner/../inner/a.png",
        "near.png",
        png(),
        bytearray(png()),
        memoryview(png()),
        {"bytes": png(), "path": "elsewhere.png"},
        {"bytes": png(), "path": None},
        {"bytes": None, "path": "inner/a.png"},
        {"bytes": text(png())},
        text(png()),
        text(jpeg()),  # begins like an absolute path: /9j/
        text(png())[:40] + "\n" + text(png())[40:],
        f"data:image/png;base64,{text(png())}",
        IMAGE,
    ],
    ids=lambda value: f"{type(value).__name__} {str(value)[:20]}".partition(" at 0x")[0],
)
def test_an_image_in_any_form_is_a_picture(folder: Path, value: Any) -> None:
    picture = PictureFolder(folder).picture(value, "image")
    assert picture.size == (9, 6)
    assert picture.load().getpixel((4, 3)) in ((0, 128, 0), (0, 128, 1))  # JPEG is not exact


def test_an_absolute_path_inside_of_the_folder_does_not_leave_it(folder: Path) -> None:
    for path in (str(folder / "inner" / "a.png"), f"file://{folder / 'inner' / 'a.png'}"):
        assert PictureFolder(folder).picture(path, "image").size == (9, 6)


@in_one_test("path", ["../secret.png", "inner/../../secret.png", "link.png", "{root}/secret.png"])
def test_a_path_out_of_the_folder_is_refused_unless_allowed(folder: Path, path: str) -> None:
    path = path.format(root=folder.parent)
    with pytest.raises(BadRow, match=r"lies outside of .*images.*outside: true"):
        PictureFolder(folder).picture(path, "image")
    assert PictureFolder(folder, outside=True).picture(path, "image").size == (9, 6)


def test_a_folder_whose_name_begins_alike_is_outside(folder: Path) -> None:
    (folder.parent / "images2").mkdir()
    (folder.parent / "images2" / "b.png").write_bytes(png())
    with pytest.raises(BadRow, match="lies outside"):
        PictureFolder(folder).picture("../images2/b.png", "image")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("http://example.org/a.png", "is an address; images are not fetched from the web"),
        ("HTTPS://example.org/a.png", "is an address"),
        ({"path": "s3://bucket/a.png"}, "is an address"),
        ("missing.png", "there is no image file 'missing.png' under"),
        ("inner", "there is no image file 'inner'"),
        ("circle.png", "circle.png"),
        ("a" * 5000 + ".png", "cannot look for the image 'aaa"),
        ("a\0b.png", "is no path"),
        ("broken.png", r"cannot read the image broken\.png"),
        (png()[:30], "cannot read the image image"),
        (f"data:image/png,{text(png())}", "a data URI that is not in base64"),
        ("data:image/png;base64,?!", "image is not base64"),
        ({"bytes": None, "path": None}, "needs 'bytes' or 'path'"),
        ({}, "needs 'bytes' or 'path', got nothing"),
        (3, "must be a path, bytes, base64 or an image, got int"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_all_else_is_a_bad_row(folder: Path, value: Any, message: str) -> None:
    with pytest.raises(BadRow, match=message):
        PictureFolder(folder).picture(value, "image")


def test_a_path_needs_a_folder() -> None:
    with pytest.raises(BadRow, match="say with `images` which folder it is under"):
        PictureFolder(None).picture("a.png", "image")


def test_bytes_are_named_by_their_path() -> None:
    with pytest.raises(BadRow, match=r"cannot read the image \(cat\.png\)"):
        PictureFolder(None).picture({"bytes": b"x", "path": "cat.png"}, "image")


def test_one_file_of_many_rows_is_one_picture(folder: Path) -> None:
    pictures = PictureFolder(folder)
    assert pictures.picture("inner/a.png", "image") is pictures.picture("inner/a.png", "image")


def test_a_damaged_image_is_a_bad_row_only_where_images_are_decoded(folder: Path) -> None:
    noise = Image.effect_noise((200, 100), 90)
    noise.save(folder / "whole.png")
    content = (folder / "whole.png").read_bytes()
    (folder / "cut.png").write_bytes(content[: len(content) // 2])
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": name, "images": [name]}) + "\n" for name in ("cut.png", "whole.png")))
    lazy = DatasetSettings(path=str(path), bad_rows="skip")
    assert [prompt.text for prompt in load_dataset_prompts(lazy)] == ["cut.png", "whole.png"]
    eager = lazy.model_copy(update={"decode": True})
    assert [prompt.text for prompt in load_dataset_prompts(eager)] == ["whole.png"]
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 1: cannot read the image cut\.png"):
        load_dataset_prompts(eager.model_copy(update={"bad_rows": "fail"}))
