"""Plug-ins found by the names of their files."""

from pathlib import Path

import pytest

from mmrl.core.plugin_files import plugin_files
from mmrl.system.errors import ConfigError


def written(folder: Path, *files: str) -> Path:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("raise AssertionError('listing imports nothing')\n", encoding="utf-8")
    return folder


FILES = (
    "__init__.py", "_shared.py", "plain.py", "notes.md", "text/__init__.py", "text/bleu.py", "text/_words.py",
    "text/base/cider.py", "images/video/flicker.py", "base/clip.py", "_private/hidden.py", "__pycache__/bleu.py",
)  # fmt: skip


def test_nested_plug_ins_are_found_at_any_depth_but_in_shared_and_private_folders(tmp_path: Path) -> None:
    found = plugin_files(written(tmp_path, *FILES), is_nested=True)
    assert found == {"bleu": "text.bleu", "flicker": "images.video.flicker", "plain": "plain"}
    assert list(found) == sorted(found)


def test_other_plug_ins_are_the_files_of_the_folder_itself(tmp_path: Path) -> None:
    assert plugin_files(written(tmp_path, *FILES), is_nested=False) == {"plain": "plain"}


def test_two_of_one_name_are_a_mistake_that_names_both(tmp_path: Path) -> None:
    written(tmp_path, "text/count.py", "boxes/count.py", "base/count.py")
    with pytest.raises(ConfigError, match=r"two plug-ins called 'count', boxes/count.py and text/count.py: rename"):
        plugin_files(tmp_path, is_nested=True)
    assert plugin_files(tmp_path, is_nested=False) == {}


def test_a_plug_in_and_a_folder_may_have_one_name(tmp_path: Path) -> None:
    assert plugin_files(written(tmp_path, "python.py", "python/words.py"), is_nested=True) == {
        "python": "python",
        "words": "python.words",
    }


def test_a_linked_folder_is_walked(tmp_path: Path) -> None:
    written(tmp_path / "real", "text/bleu.py")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert plugin_files(tmp_path / "link", is_nested=True) == {"bleu": "text.bleu"}
