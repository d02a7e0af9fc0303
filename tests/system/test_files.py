"""What is written appears whole or not at all, also where a process is killed in the middle."""

import multiprocessing
import os
import signal
import stat
import tempfile
import time
from pathlib import Path

import pytest

from mmrl.system.errors import ConfigError
from mmrl.system.files import replace_file, scratch_folder, whole_folder


def killed_in_the_middle(target: Path) -> None:
    with whole_folder(target) as folder:
        (folder / "half").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, b"first")

    def full(target: Path) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("mmrl.system.files.flush", full)
        with pytest.raises(OSError, match="no space left"):
            replace_file(path, b"second")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"first"
    replace_file(path, b"third")
    assert path.read_bytes() == b"third" and [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "empty"])
def test_a_folder_appears_at_the_end_of_the_block(tmp_path: Path, is_there: bool) -> None:
    target = tmp_path / "deep" / "target"
    if is_there:
        target.mkdir(parents=True)
    with whole_folder(target) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("x")
        assert not target.exists() or not any(target.iterdir())
    assert (target / "sub" / "file").read_text() == "x"
    assert [one.name for one in target.parent.iterdir()] == ["target"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o777 & ~current_umask()


def test_a_folder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="in the middle"), whole_folder(tmp_path / "target") as folder:
        (folder / "file").write_text("x")
        raise ValueError("in the middle")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_killed_process_leaves_no_half_folder_and_the_next_one_clears_away_what_it_left(tmp_path: Path) -> None:
    target = tmp_path / "target"
    process = multiprocessing.get_context("fork").Process(target=killed_in_the_middle, args=(target,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not target.exists() and [one.name for one in tmp_path.iterdir()] == [f".tmp-target-{process.pid}"]
    with whole_folder(tmp_path / "other") as folder:
        (folder / "file").write_text("x")
    assert len(list(tmp_path.iterdir())) == 2, "of another target"
    with whole_folder(target) as folder:
        (folder / "file").write_text("x")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["other", "target"]


@pytest.mark.slow
def test_a_scratch_folder_ends_with_its_block_and_one_of_a_killed_process_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("mmrl-check-killed", "mmrl-check-new", "mmrl-doctor-other"):
        (tmp_path / name / "inside").mkdir(parents=True)
    hour_ago = time.time() - 3600
    for name in ("mmrl-check-killed", "mmrl-doctor-other"):
        os.utime(tmp_path / name, (hour_ago, hour_ago))
    with scratch_folder("check") as first:
        os.utime(first, (hour_ago, hour_ago))
        with scratch_folder("check") as second:  # as another process has it: the lock is of the open file
            assert first.is_dir() and second.is_dir() and first != second
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"mmrl-check-new", "mmrl-doctor-other"}, "one that may not be locked yet, one of another kind"


def test_what_another_process_writes_at_the_same_time_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with whole_folder(target) as folder:
        elsewhere = multiprocessing.get_context("fork").Process(target=killed_in_the_middle, args=(target,))
        elsewhere.start()
        elsewhere.join()
        assert folder.exists()
        (folder / "file").write_text("x")
    assert (target / "file").read_text() == "x"


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_folder_that_another_process_filled_is_left_to_it(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with pytest.raises(ConfigError, match="was filled by another process meanwhile"), whole_folder(target) as folder:
        (folder / "mine").touch()
        target.mkdir()
        (target / "theirs").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["target", "theirs"]
