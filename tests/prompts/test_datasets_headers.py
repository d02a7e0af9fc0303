"""What is looked at when the rows of a data set are read: which headers, and how it is known that a file is there."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.core.config import DatasetSettings
from mmrl.core.data import Prompt
from mmrl.prompts import datasets, row_pictures
from mmrl.prompts.row_pictures import BadRow, PictureFolder
from mmrl.prompts.stream import PromptStream, load_prompts
from mmrl.system.errors import ConfigError


@pytest.fixture(autouse=True)
def _small_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(datasets, "CHECKED", 2)
    monkeypatch.setattr(row_pictures, "LOOKED", 1)


def written(folder: Path, count: int = 4, broken: int | None = 3, **fields: Any) -> Path:
    """Rows of one image each, of which one may be no image."""
    rows = []
    for number in range(count):
        path = folder / f"{number}.png"
        Image.new("RGB", (20 + number, 10)).save(path)
        if number == broken:
            path.write_bytes(b"no image")
        rows.append({"prompt": f"what is {number}?", "image": path.name, **fields})
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(path: Path, **settings: Any) -> tuple[Prompt, ...]:
    return load_prompts(DatasetSettings(path=str(path), **settings))


def test_headers_behind_the_first_ones_are_read_when_they_are_used(tmp_path: Path) -> None:
    prompts = load(written(tmp_path))
    assert [prompt.media[0].is_read for prompt in prompts] == [True, True, False, False]  # type: ignore[attr-defined]
    assert prompts[2].media[0].size == (22, 10)
    with pytest.raises(ConfigError, match=r"cannot read the image 3\.png"):
        prompts[3].media[0].load()


@pytest.mark.parametrize("settings", [{"headers": True}, {"decode": True}])
def test_with_the_setting_a_broken_header_is_a_bad_row(settings: dict[str, bool], tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 4: cannot read the image 3\.png"):
        load(path, **settings)
    assert len(load(path, bad_rows="skip", **settings)) == 3


def test_a_row_that_needs_the_size_reads_the_header(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 4: cannot read the image 3\.png"):
        load(written(tmp_path, box=[1, 1, 5, 5]), headers=False)
    path = written(tmp_path, count=4, broken=None, box=[1, 1, 22, 5])
    with pytest.raises(ConfigError, match=r"line 1: box \[1, 1, 22, 5\] lies outside of the image of 20 x 10"):
        load(path, headers=False)


def test_without_the_setting_none_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    monkeypatch.setattr(Image, "open", lambda *given, **settings: pytest.fail("a file was opened"))
    prompts = load(path, headers=False)
    assert len(prompts) == 4
    assert PromptStream([prompts], [1.0], 0).state_dict()["digest"]  # nor by a checkpoint


def test_a_missing_file_is_found_by_the_listing(tmp_path: Path) -> None:
    path = written(tmp_path)
    with path.open("a") as file:
        file.write(json.dumps({"prompt": "what?", "image": "nowhere.png"}) + "\n")
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 5: there is no image file 'nowhere\.png' under"):
        load(path, headers=False)


def test_a_listing_finds_what_looking_at_each_file_finds(tmp_path: Path) -> None:
    inside, elsewhere = tmp_path / "inside", tmp_path / "elsewhere"
    for folder in (inside, inside / "sub", elsewhere):
        folder.mkdir()
        written(folder, count=3, broken=None)
    (inside / "link.png").symlink_to(inside / "0.png")
    (inside / "out.png").symlink_to(elsewhere / "0.png")
    (inside / "folder").symlink_to(elsewhere)
    (inside / "1.png.d").mkdir()
    names = ["0.png", "link.png", "out.png", "sub/1.png", "./1.png", "sub/../2.png", "../elsewhere/0.png", "1.png.d"]
    names += ["folder/0.png", "sub//2.png", "gone.png", "sub/gone.png", "", ".", "..", "a\0b.png"]
    names += [str(inside / "0.png")]
    for outside in (False, True):
        listing, slow = PictureFolder(inside, outside), PictureFolder(inside, outside)
        for name in names * 4:
            slow._looked.clear()  # so that it lists nothing
            got, wanted = (path_or_reason(folder, name) for folder in (listing, slow))
            assert got == wanted, name
    assert listing._listings


def path_or_reason(folder: PictureFolder, name: str) -> Path | str:
    try:
        return folder.find(name)
    except BadRow as error:
        return str(error)


def test_a_checkpoint_of_an_older_version_goes_on(tmp_path: Path) -> None:
    """Its digest held the sizes of the images, all of whose headers were read."""
    prompts = load(written(tmp_path, broken=None))
    older = PromptStream([prompts], [1.0], 0)
    state = {**older.state_dict(), "digest": older._digest_by(lambda picture: picture.size)}
    assert state["digest"] != older._digest
    PromptStream([load(tmp_path / "rows.jsonl")], [1.0], 0).check_same(state)
    Image.new("RGB", (99, 10)).save(tmp_path / "3.png")
    with pytest.raises(ConfigError, match="some of them changed"):
        PromptStream([load(tmp_path / "rows.jsonl")], [1.0], 0).check_same(state)
