"""What the tests of two processes do where one of them dies: a crash is tried once more, an error is not."""

from pathlib import Path

import pytest

from tests import process_runs
from tests.process_runs import LOST, Ended

CRASHED = [Ended(-11, "Fatal Python error: Segmentation fault"), Ended(1, f"Traceback: {LOST}")]


def give(monkeypatch: pytest.MonkeyPatch, *attempts: list[Ended]) -> list[list[Ended]]:
    """The attempts that are left when runs end so, one after the other."""
    left = list(attempts)
    monkeypatch.setattr(process_runs, "mmrl", lambda *_: left.pop(0))
    return left


def test_a_crash_is_tried_once_more_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = give(monkeypatch, CRASHED, [Ended(0, ""), Ended(0, "")])
    with pytest.warns(RuntimeWarning, match="Segmentation fault"):
        assert process_runs.train(tmp_path, "two", 2) == tmp_path / "two"
    assert not left


def test_a_second_crash_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = give(monkeypatch, CRASHED, CRASHED)
    with pytest.warns(RuntimeWarning), pytest.raises(AssertionError, match="process 0 ended with -11"):
        process_runs.train(tmp_path, "two", 2)
    assert not left


@pytest.mark.parametrize("first", [
    Ended(1, "Traceback (most recent call last): ValueError"),  # an error of ours
    Ended(-9, "Timeout (0:01:50)!\nThread 0x1 (most recent call first):"),  # it hung, and was killed
])  # fmt: skip
def test_an_error_and_a_hang_fail_at_once(first: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = give(monkeypatch, [first, CRASHED[1]], [Ended(0, ""), Ended(0, "")])
    with pytest.raises(AssertionError, match=f"(?s){LOST}.*process 0 ended with {first.code}"):  # the cause stands last
        process_runs.train(tmp_path, "two", 2)
    assert len(left) == 1
