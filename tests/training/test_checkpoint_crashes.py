"""Checkpoints of processes that are killed and on disks that are full."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mmrl.core.contracts import RunError
from mmrl.training import checkpoint as module
from mmrl.training.checkpoint import Checkpoint, latest, load, prune, save, saved

KILLED = 9


def small(iteration: int, value: float = 0.0) -> Checkpoint:
    tensors = {"trained": {"weight": torch.full((5,), value)}, "optimizer": {"step": torch.tensor(value)}}
    return Checkpoint(iteration, tensors, {"value": value})


def value_of(checkpoint: Checkpoint) -> float:
    """The number that `small` put into every part; fails where the parts are not of one checkpoint."""
    value: float = checkpoint.state["value"]
    assert torch.equal(checkpoint.tensors["trained"]["weight"], torch.full((5,), value))
    assert checkpoint.tensors["optimizer"]["step"].item() == value
    return value


def die_at(step: int, folder: Path, patch: Callable[[Any, str, Any], None]) -> None:
    """Makes the process exit at its `step`-th change of the disk, losing half of every file that was not flushed."""
    flushed = {file.stat().st_ino for file in folder.rglob("*") if file.is_file()}
    remaining = iter(range(step))

    def guard(change: Callable[..., Any], marks: bool = False) -> Callable[..., Any]:
        def changed(*args: Any, **settings: Any) -> Any:
            if next(remaining, None) is None:
                for file in folder.rglob("*"):
                    if file.is_file() and file.stat().st_ino not in flushed:
                        os.truncate(file, file.stat().st_size // 2)
                os._exit(KILLED)
            if marks:
                flushed.add(os.fstat(args[0]).st_ino)
            return change(*args, **settings)

        return changed

    for name in ("mkdir", "rename", "unlink", "rmdir"):
        patch(os, name, guard(getattr(os, name)))
    patch(os, "fsync", guard(os.fsync, marks=True))
    patch(module, "save_file", guard(save_file))
    patch(Path, "write_text", guard(Path.write_text))


def killed_at(step: int, folder: Path, action: Callable[[], Any]) -> bool:
    """Runs `action` in a forked process that dies at `step`; False where it ended before that."""
    child = os.fork()
    if child == 0:
        try:
            die_at(step, folder, setattr)
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED)
    return code == KILLED


def each_kill(folder: Path, prepare: Callable[[], Any], action: Callable[[], Any]) -> Iterator[int]:
    """Repeats `prepare` and a killed `action`, one step later each time, until the action ends alive."""
    for step in range(200):
        shutil.rmtree(folder, ignore_errors=True)
        prepare()
        if not killed_at(step, folder, action):
            return
        yield step


forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.mark.slow
@forks
@pytest.mark.parametrize("iteration", [2, 1], ids=["a new iteration", "the same iteration again"])
def test_a_kill_inside_a_save_leaves_the_old_or_the_new_one_whole(tmp_path: Path, iteration: int) -> None:
    folder = tmp_path / "checkpoints"
    seen = []
    for _ in each_kill(folder, lambda: save(folder, small(1, 0.25)), lambda: save(folder, small(iteration, 0.5))):
        path = latest(folder)
        assert path is not None
        seen.append(value_of(load(path)))
        save(folder, small(3, 0.75))  # goes on, and clears up
        assert value_of(load(folder / "000001")) in ((0.25,) if iteration == 2 else (0.25, 0.5))
        assert sorted(entry.name for entry in folder.iterdir() if entry.name[0] == ".") == []
    assert set(seen) == {0.25, 0.5} and seen == sorted(seen)  # old until one moment, new from then on
    assert len(seen) >= 9  # mkdir, two tensor files, state, three files and a folder flushed, rename


@pytest.mark.slow  # a process for each change of the disk
@forks
def test_a_kill_inside_the_first_save_leaves_nothing_or_all(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    outcomes = set()
    for _ in each_kill(folder, lambda: None, lambda: save(folder, small(1, 0.5))):
        path = latest(folder)
        outcomes.add(None if path is None else value_of(load(path)))
    assert outcomes == {None, 0.5}


@pytest.mark.slow  # a process for each change of the disk
@forks
def test_a_kill_inside_a_prune_leaves_no_broken_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"

    def prepare() -> None:
        for iteration in range(3):
            save(folder, small(iteration, float(iteration)))

    for _ in each_kill(folder, prepare, lambda: prune(folder, keep=1)):
        found = saved(folder)
        assert max(found) == 2
        for iteration, path in found.items():
            assert value_of(load(path)) == iteration


@pytest.mark.slow  # a process for each change of the disk
@forks
def test_a_kill_while_clearing_up_after_a_kill_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"

    def prepare() -> None:
        shutil.copytree(save(folder, small(1, 0.25)), folder / ".tmp-000002")
        os.rename(folder / "000001", folder / ".replaced-000001")  # killed between the two renames

    for _ in each_kill(folder, prepare, lambda: save(folder, small(2, 0.5))):
        path = latest(folder)
        assert path is not None and value_of(load(path)) in (0.25, 0.5)
        assert value_of(load(saved(folder)[1])) == 0.25


@pytest.mark.parametrize("owner, name", [(os, "rename"), (os, "fsync"), (module, "save_file"), (Path, "write_text")])
@pytest.mark.parametrize("iteration", [3, 4], ids=["again", "new"])
def test_a_full_disk_keeps_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, iteration: int
) -> None:
    for done in (2, 3):
        save(tmp_path, small(done, float(done)))

    original = getattr(owner, name)
    for failing in range(20):
        calls = iter(range(failing))

        def full(*args: Any, calls: Iterator[int] = calls, **settings: Any) -> Any:
            if next(calls, None) is None:
                monkeypatch.setattr(owner, name, original)  # the clearing up that follows may use it
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(*args, **settings)

        monkeypatch.setattr(owner, name, full)
        try:
            save(tmp_path, small(iteration, 9.0))
        except RunError as error:
            assert str(tmp_path) in str(error) and "No space left" in str(error) and "2, 3" in str(error)
        else:
            break
        finally:
            monkeypatch.setattr(owner, name, original)
        assert value_of(load(tmp_path / "000002")) == 2
        assert value_of(load(tmp_path / "000003")) in ((3,) if iteration == 4 else (3, 9))
        assert not [entry for entry in tmp_path.iterdir() if entry.name[0] == "."]
    assert 0 < failing < 19


def test_a_disk_that_is_really_full_is_an_error_of_the_run(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        save(tmp_path, small(1, 0.5))
        large = Checkpoint(2, {"averaged": {"weight": torch.zeros(400_000)}}, {})
        with pytest.raises(RunError, match=r"No space left .* untouched: 1"):
            save(tmp_path, large)
        assert [entry.name for entry in tmp_path.iterdir()] == ["000001"]
        assert value_of(load(tmp_path / "000001")) == 0.5
        save(tmp_path, small(2))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_folder_that_cannot_be_made_is_an_error_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(RunError, match="untouched: none"):
        save(tmp_path / "checkpoints", small(1))
