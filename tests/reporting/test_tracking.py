import errno
import io
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from mmrl.core.contracts import ConfigError, RunError
from mmrl.reporting.metrics_log import MetricsLog
from mmrl.reporting.tracking import Tracking
from mmrl.system.progress_bars import TrainingBar
from tests.parameters import in_one_test


@pytest.fixture
def log(tmp_path: Path) -> MetricsLog:
    return MetricsLog(tmp_path / "metrics.jsonl")


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def test_a_line_begins_with_the_iteration_and_keeps_the_order(log: MetricsLog) -> None:
    log.write(0, {"held_out/score": 0.1 + 0.2})
    log.write(1, {"z": 2, "a": 1e-300})
    assert log.path.read_text() == (
        '{"iteration": 0, "held_out/score": 0.30000000000000004}\n{"iteration": 1, "z": 2.0, "a": 1e-300}\n'
    )
    assert log.read() == [{"iteration": 0, "held_out/score": 0.1 + 0.2}, {"iteration": 1, "z": 2.0, "a": 1e-300}]


def test_what_json_cannot_say_is_null(log: MetricsLog) -> None:
    log.write(1, {"nan": math.nan, "up": math.inf, "down": -math.inf, "fine": -0.0})
    (line,) = log.path.read_text().splitlines()
    assert json.loads(line, parse_constant=refuse) == {
        "iteration": 1,
        "nan": None,
        "up": None,
        "down": None,
        "fine": 0.0,
    }


def test_a_scalar_tensor_is_a_number(log: MetricsLog) -> None:
    log.write(1, {"loss": torch.tensor(0.5), "bad": torch.tensor(math.nan)})  # type: ignore[dict-item]  # as callers do
    assert log.read() == [{"iteration": 1, "loss": 0.5, "bad": None}]


def test_a_line_is_written_at_once(log: MetricsLog, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    original = os.write

    def write(handle: int, line: bytes) -> int:
        written.append(line)
        return original(handle, line)

    monkeypatch.setattr(os, "write", write)
    log.write(1, {"a": 1.0, "b": 2.0})
    assert written == [b'{"iteration": 1, "a": 1.0, "b": 2.0}\n']


def test_no_file_is_an_empty_log(log: MetricsLog) -> None:
    log.cut_back(3)
    log.sync()
    assert log.read() == [] and not log.path.exists()


@pytest.mark.parametrize("cut", range(2, 20))
def test_a_torn_last_line_is_left_out_and_only_it(log: MetricsLog, cut: int) -> None:
    log.write(1, {"a": 1.0})
    log.write(2, {"a": 1.0})
    whole = log.path.read_bytes()
    log.path.write_bytes(whole[:-cut])
    assert log.read() == [{"iteration": 1, "a": 1.0}]
    log.cut_back(9)
    assert log.path.read_bytes() == b'{"iteration": 1, "a": 1.0}\n'


def test_a_last_line_that_lacks_its_newline_alone_is_whole(log: MetricsLog) -> None:
    log.write(1, {"a": 1.0})
    whole = log.path.read_bytes()
    log.path.write_bytes(whole[:-1])
    assert log.read() == [{"iteration": 1, "a": 1.0}]
    log.cut_back(9)
    assert log.path.read_bytes() == whole


def test_lines_and_iterations_up_to_a_checkpoint_are_counted(log: MetricsLog) -> None:
    assert log.count_up_to(9) == (0, 0)
    log.write(0, {"held_out/score": 0.5})
    for iteration in (1, 2, 3):
        log.write(iteration, {"a": 1.0})
    log.write(2, {"held_out/score": 0.5})
    assert log.count_up_to(2) == (4, 2)
    assert log.count_up_to(2, is_evaluated=False) == (3, 2)
    assert log.count_up_to(-1) == (0, 0)


@in_one_test("bad", ['{"iteration": 1, "a"', "", "[1]", '{"a": 1.0}', '{"iteration": "2"}', "\0\0"])
def test_damage_in_the_middle_is_named_by_its_line(log: MetricsLog, bad: str) -> None:
    log.path.write_text(f'{{"iteration": 1}}\n{bad}\n{{"iteration": 2}}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 2"):
        log.read()


@pytest.mark.parametrize("kept, lines", [(-1, 0), (0, 1), (1, 2), (2, 4), (7, 5)])
def test_cutting_back_keeps_the_lines_up_to_the_iteration_byte_for_byte(log: MetricsLog, kept: int, lines: int) -> None:
    for iteration, value in ((0, 0.1), (1, 0.2), (2, 0.3), (2, 0.4), (3, math.nan)):
        log.write(iteration, {"time/iteration": value})
    before = log.path.read_bytes().splitlines(keepends=True)
    log.cut_back(kept)
    assert log.path.read_bytes() == b"".join(before[:lines])
    assert [path.name for path in log.path.parent.iterdir()] == ["metrics.jsonl"]


def test_a_kill_while_cutting_back_leaves_the_log_as_it_was(log: MetricsLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write(1, {})
    log.write(2, {})
    before = log.path.read_bytes()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        log.cut_back(1)
    assert log.path.read_bytes() == before


@pytest.mark.parametrize("room", [0, 5])
def test_a_full_disk_leaves_whole_lines(log: MetricsLog, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    log.write(1, {"a": 1.0})
    before = log.path.read_bytes()
    original = os.write

    def full(handle: int, line: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(handle, line[:room])  # what write(2) does on the last free bytes

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(RunError, match=r"metrics\.jsonl: .*No space left"):
            log.write(2, {"a": 2.0})
    assert log.path.read_bytes() == before
    log.write(2, {"a": 2.0})
    assert [line["iteration"] for line in log.read()] == [1, 2]


class Clock:
    """Stands in for time.monotonic."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=20)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_progress_without_a_terminal_is_a_plain_line_now_and_then(clock: Clock) -> None:
    console = plain()
    progress = TrainingBar(5, every=2, console=console)
    clock.now += 30  # an evaluation before training is no iteration
    progress.update(0, {"held_out/score": 0.25})
    for iteration in range(1, 6):
        clock.now += 4
        progress.update(iteration, {"reward/mean": iteration / 8, "other": 1.0})
        progress.update(iteration, {})  # a second call for an iteration prints nothing
    clock.now += 100
    progress.update(5, {})  # an evaluation afterwards does not change the rate
    assert progress.line() == "5/5  reward 0.625  held-out 0.25 (at 0)  4.00 s/iteration  0:00:00 left"
    progress.close()
    assert text(console).splitlines() == [
        "2/5  reward 0.25  held-out 0.25 (at 0)  4.00 s/iteration  0:00:12 left",
        "4/5  reward 0.5  held-out 0.25 (at 0)  4.00 s/iteration  0:00:04 left",
        "5/5  reward 0.625  held-out 0.25 (at 0)  4.00 s/iteration  0:00:00 left",
    ]


def test_the_rate_is_that_of_the_last_twenty_iterations_of_this_process(clock: Clock) -> None:
    progress = TrainingBar(1100, done=1000, console=plain())
    assert progress.line() == "1000/1100"
    for iteration in range(1001, 1041):
        clock.now += 10 if iteration <= 1020 else 0.25
        progress.update(iteration, {})
        if iteration == 1001:
            assert progress.line() == "1001/1100  10.00 s/iteration  0:16:30 left"
        if iteration == 1039:  # 20 iterations in 10 + 19 / 4 seconds
            assert progress.line() == "1039/1100  1.36 iterations/s  0:00:45 left"
    assert progress.line() == "1040/1100  4.00 iterations/s  0:00:15 left"


def test_progress_on_a_terminal_is_one_bar_that_moves() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None, legacy_windows=False)
    progress = TrainingBar(4, console=console)
    for iteration in (1, 2, 3, 4):
        progress.update(iteration, {"reward/mean": 0.5})
    progress.close()
    progress.close()
    assert "4/4  reward 0.5" in text(console)
    assert text(console).count("\n") < 4  # redrawn in place


class Recorder:
    """A tracker that remembers its calls."""

    def __init__(self, calls: list[Any], fails: str = "") -> None:
        self.calls, self.fails = calls, fails

    def note(self, name: str, *given: Any) -> None:
        self.calls.append((name, *given))
        if name == self.fails:
            raise ConfigError(f"{name} failed")

    def open(self, folder: Path, config: Mapping[str, Any], kept: int) -> None:
        self.note("open", folder, config, kept)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.note("log", iteration, metrics)

    def images(self, iteration: int, name: str, paths: Sequence[Path]) -> None:
        self.note("images", iteration, name, paths)

    def close(self) -> None:
        self.note("close")


def test_every_part_gets_every_number(tmp_path: Path, log: MetricsLog) -> None:
    first: list[Any] = []
    second: list[Any] = []
    progress = TrainingBar(9, console=plain())
    tracking = Tracking(log, (Recorder(first), Recorder(second)), progress)
    with tracking.open(tmp_path, {"seed": 1}):
        tracking.log(1, {"reward/mean": 0.5, "loss": math.nan})
        tracking.images(1, "samples", [tmp_path / "a.png"])
        tracking.sync()
    tracking.close()
    assert (
        first
        == second
        == [
            ("open", tmp_path, {"seed": 1}, -1),
            ("log", 1, {"reward/mean": 0.5}),
            ("images", 1, "samples", [tmp_path / "a.png"]),
            ("close",),
        ]
    )
    assert log.read() == [{"iteration": 1, "reward/mean": 0.5, "loss": None}]
    assert progress.line().startswith("1/9  reward 0.5")


def test_opening_cuts_the_log_back_and_tells_the_trackers(tmp_path: Path, log: MetricsLog) -> None:
    calls: list[Any] = []
    for iteration in (1, 2, 3):
        log.write(iteration, {})
    Tracking(log, [Recorder(calls)]).open(tmp_path, {}, kept=2).close()
    assert [line["iteration"] for line in log.read()] == [1, 2]
    assert calls[0] == ("open", tmp_path, {}, 2)
    Tracking(log).open(tmp_path, {})  # a run that starts anew keeps no line
    assert log.read() == []


def test_a_tracker_that_cannot_open_closes_those_before_it(tmp_path: Path, log: MetricsLog) -> None:
    opened: list[Any] = []
    failed: list[Any] = []
    tracking = Tracking(log, [Recorder(opened), Recorder(failed, fails="open")])
    with pytest.raises(ConfigError, match="open failed"):
        tracking.open(tmp_path, {})
    assert [call[0] for call in opened] == ["open", "close"] and [call[0] for call in failed] == ["open"]


def test_a_tracker_that_cannot_close_does_not_keep_others_open(tmp_path: Path) -> None:
    calls: list[Any] = []
    tracking = Tracking(None, [Recorder(calls), Recorder([], fails="close")]).open(tmp_path, {})
    with pytest.raises(ConfigError, match="close failed"):
        tracking.close()
    assert calls[-1] == ("close",)


def test_without_parts_nothing_is_written(tmp_path: Path) -> None:
    with Tracking().open(tmp_path, {}, kept=3) as tracking:
        tracking.log(1, {"a": 1.0})
        tracking.images(1, "samples", [])
        tracking.sync()
    assert list(tmp_path.iterdir()) == []
