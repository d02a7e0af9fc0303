"""One process at a time trains in a run directory; one that ended, a copy and a machine that is away leave no lock."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mmrl.run_directory import lock as lock_module
from mmrl.run_directory import start
from mmrl.run_directory.lock import LOCK, ProcessId, RunLock, this_process
from mmrl.system.errors import ConfigError, RunError


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def identity(process: subprocess.Popen[bytes]) -> ProcessId:
    return replace(this_process(), process=process.pid, start=lock_module._start_of(process.pid))


def away(folder: Path, seconds: float) -> RunLock:
    """The lock of a process of another machine, last renewed so many seconds ago."""
    lock = RunLock(folder, ProcessId("gpu-7", "another machine", 4242, "17"))
    lock.path.unlink(missing_ok=True)
    lock.take()
    then = time.time() - seconds
    os.utime(lock.path, (then, then))
    return lock


def test_a_second_process_is_refused_and_told_who_holds_the_lock(
    tmp_path: Path, other: subprocess.Popen[bytes]
) -> None:
    holder = RunLock(tmp_path, identity(other))
    holder.take()
    with pytest.raises(ConfigError) as refused:
        RunLock(tmp_path).take()
    content = json.loads(holder.path.read_text())
    assert content["who"]["process"] == other.pid and content["who"]["host"] == this_process().host
    said = (
        f"{tmp_path} is in use: process {other.pid} on {this_process().host} has trained there since {content['since']}"
    )
    assert said in str(refused.value)
    with pytest.raises(ConfigError, match="is in use"):
        RunLock(tmp_path).refuse_other()
    RunLock(tmp_path).give_back()
    assert RunLock(tmp_path).holder == holder.me


def test_the_same_process_takes_its_lock_twice_and_gives_it_back(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.take()
    before = lock.path.read_bytes()
    with RunLock(tmp_path).held():
        assert lock.path.read_bytes() == before
    assert not lock.path.exists()


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    RunLock(tmp_path, identity(other)).take()
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it ended, and keeps its number until somebody asks how
    RunLock(tmp_path).take()
    other.wait()
    assert RunLock(tmp_path).holder == this_process()


def test_a_later_process_of_the_same_number_is_another(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    RunLock(tmp_path, replace(identity(other), start="1")).take()
    RunLock(tmp_path).take()
    assert RunLock(tmp_path).holder == this_process()


def test_a_process_of_this_machine_keeps_its_lock_however_long_it_is_silent(
    tmp_path: Path, other: subprocess.Popen[bytes]
) -> None:
    holder = RunLock(tmp_path, identity(other))
    holder.take()
    os.utime(holder.path, (0, 0))
    with pytest.raises(ConfigError, match="is in use"):
        RunLock(tmp_path).take()


def test_a_lock_of_another_machine_is_free_after_a_minute_without_renewal(tmp_path: Path) -> None:
    away(tmp_path, 50)
    with pytest.raises(ConfigError, match=r"process 4242 on gpu-7 has trained .* sign of life was 5\d s ago"):
        RunLock(tmp_path).take()
    away(tmp_path, 61)
    RunLock(tmp_path).take()
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_whether_a_lock_is_taken_is_read_without_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "touch", lambda path: pytest.fail("a reader may not write here"))
    for seconds, is_taken in ((30, True), (90, False)):
        away(tmp_path, seconds)
        assert RunLock(tmp_path).is_taken is is_taken
    assert not RunLock(tmp_path / "none").is_taken


def test_a_damaged_lock_is_nobodys_and_free_after_a_minute(tmp_path: Path) -> None:
    for damaged in (b"{", b"[" * 100_000, b'{"who": 3}', b"\xff\x00"):
        (tmp_path / LOCK).write_bytes(damaged)
        with pytest.raises(
            ConfigError,
            match=r"lock\.json is damaged, so who trains there cannot be known; its last sign of life was 0 s ago",
        ):
            RunLock(tmp_path).take()
        os.utime(tmp_path / LOCK, (0, 0))
        RunLock(tmp_path).take()


def test_a_copy_of_a_run_is_free_and_a_run_that_moved_is_not(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    original = tmp_path / "run"
    original.mkdir()
    RunLock(original, identity(other)).take()
    copy = shutil.copytree(original, tmp_path / "copy")
    RunLock(copy).take()
    moved = original.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match="is in use"):
        RunLock(moved).take()


def test_a_held_lock_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "RENEWAL", 0.01)
    with RunLock(tmp_path).held() as lock:
        os.utime(lock.path, (0, 0))
        deadline = time.monotonic() + 20
        while lock.path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert time.time() - lock.path.stat().st_mtime < 20


def test_a_process_whose_lock_was_taken_writes_no_more(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.take()
    lock.check()
    os.utime(lock.path, (0, 0))
    lock.path.unlink()
    with pytest.raises(RunError, match="its lock was removed"):
        lock.check()
    away(tmp_path, 0)
    with pytest.raises(RunError, match="no longer this process's own: gpu-7, process 4242, took it"):
        lock.check()


@pytest.mark.slow
def test_a_new_run_in_a_locked_directory_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    away(folder, 0)
    with pytest.raises(ConfigError, match="run is in use: process 4242 on gpu-7"):
        start.new_run("quickstart", [], folder)
    assert [path.name for path in folder.iterdir()] == [LOCK]
    away(folder, 61)
    start.new_run("quickstart", [], folder)
    away(folder, 0)
    with pytest.raises(ConfigError, match="run is in use"):
        start.resumed_run(folder, [])
    start.forget(folder)
    assert (folder / "config.yaml").is_file(), "it is another's"
