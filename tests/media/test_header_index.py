"""The index of headers: read once, known again by another start, and never trusted for a file that changed."""

import json
import os
import pickle
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from mmrl.media import header_index
from mmrl.media.header_index import Header, HeaderIndex
from mmrl.media.pictures import StoredPicture
from mmrl.media.video import StoredClip
from mmrl.system.errors import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(header_index, "WORTH_KEEPING", 1)
    return tmp_path / "home"


def write(path: Path, size: tuple[int, int], at: int = 1) -> Path:
    file = BytesIO()
    Image.new("RGB", size).save(file, "PNG")
    path.write_bytes(file.getvalue())
    os.utime(path, ns=(at, at))
    return path


def size_of(path: Path, index: HeaderIndex) -> tuple[int, int]:
    return StoredPicture(path.name, path=path, index=index).size


def test_another_start_knows_the_headers_without_opening_a_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write(tmp_path / "a.png", (3, 5)), write(tmp_path / "b.png", (7, 2))
    index = HeaderIndex.of(tmp_path)
    assert [size_of(first, index), size_of(second, index), size_of(first, index)] == [(3, 5), (7, 2), (3, 5)]
    assert index.num_read == 2
    index.save()
    assert [path.suffix for path in (home / ".cache" / "mmrl" / "headers").iterdir()] == [".json"]
    monkeypatch.setattr(Image, "open", lambda *given, **settings: pytest.fail("a file was opened"))
    again = HeaderIndex.of(tmp_path)
    assert [size_of(first, again), size_of(second, again)] == [(3, 5), (7, 2)] and again.num_read == 0


@pytest.mark.parametrize("what", ["time", "bytes", "gone"])
def test_a_file_that_changed_is_read_again(what: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.png", (3, 5))
    index = HeaderIndex.of(tmp_path)
    size_of(path, index)
    index.save()
    if what == "gone":
        path.unlink()
        with pytest.raises(ConfigError, match=r"cannot read the image a\.png"):
            size_of(path, HeaderIndex.of(tmp_path))
        return
    write(path, (6, 5) if what == "time" else (300, 200), at=2 if what == "time" else 1)
    assert size_of(path, HeaderIndex.of(tmp_path)) == ((6, 5) if what == "time" else (300, 200))


def test_a_header_that_cannot_be_read_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"no image")
    index = HeaderIndex.of(tmp_path)
    for _ in range(2):
        with pytest.raises(ConfigError, match="none of the formats"):
            size_of(path, index)
    assert index.num_read == 0


def test_headers_of_videos_are_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"any")
    monkeypatch.setattr("mmrl.media.video.read_header", lambda name, source: Header(2.5, (8, 6)))
    index = HeaderIndex.of(tmp_path)
    assert StoredClip("a", path=path, index=index).header() == Header(2.5, (8, 6))
    index.save()
    monkeypatch.setattr("mmrl.media.video.read_header", lambda name, source: pytest.fail("it was read again"))
    clip = StoredClip("a", path=path, end=2.0, index=HeaderIndex.of(tmp_path))
    assert clip.header() == Header(2.5, (8, 6)) and clip.duration() == 2.0
    sent = pickle.loads(pickle.dumps(clip))
    assert sent == clip and sent.header() == clip.header()


@pytest.mark.parametrize("content", ["", "[1]", '{"format": 0, "files": {}}', '{"format": 1, "files": {"a": [1]}}'])
def test_a_file_of_another_kind_is_no_index(content: str, tmp_path: Path) -> None:
    index = HeaderIndex.of(tmp_path)
    assert index.file is not None
    index.file.parent.mkdir(parents=True)
    index.file.write_text(content)
    assert size_of(write(tmp_path / "a.png", (3, 5)), index) == (3, 5)
    index.save()
    assert json.loads(index.file.read_text())["format"] == 1


def test_a_few_headers_are_not_worth_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_index, "WORTH_KEEPING", 2)
    index = HeaderIndex.of(tmp_path)
    size_of(write(tmp_path / "a.png", (3, 5)), index)
    index.save()
    assert index.file is not None and not index.file.exists()


def test_a_cache_that_cannot_be_written_is_no_error(home: Path, tmp_path: Path) -> None:
    home.write_text("a file, where the folder would be")
    index = HeaderIndex.of(tmp_path)
    size_of(write(tmp_path / "a.png", (3, 5)), index)
    index.save()
