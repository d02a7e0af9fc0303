"""Ctrl-C before there is anything to keep: one line, exit code 130, nothing left behind; later the run can go on."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mmrl
from mmrl import checks, run
from mmrl.collect import Collector
from mmrl.evaluation import Evaluator
from tests.tiny_cli import CommandLine, command_line


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(tmp_path, monkeypatch, capsys)


@pytest.fixture(autouse=True)
def listens() -> Iterator[None]:
    """As in a terminal: a shell that starts the tests in the background has them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(patch: pytest.MonkeyPatch, where: Any, name: str, *signals: signal.Signals) -> None:
    """Sends the signals to this process when `where.name` is called; it then goes on."""
    called = getattr(where, name)

    def interrupted(*given: Any, **named: Any) -> Any:
        for number in signals or (signal.SIGINT,):
            signal.raise_signal(number)
        return called(*given, **named)

    patch.setattr(where, name, interrupted)


@pytest.mark.parametrize("place", ["build", "make_trainer", "_beginning"])
def test_a_run_that_is_stopped_before_it_begins_leaves_nothing(
    cli: CommandLine, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    interrupt(monkeypatch, run, place)
    ended = cli.train()
    assert ended.code == 130
    assert ended.err.splitlines()[-1] == "mmrl: stopped before the first iteration; nothing is left in run"
    assert not Path("run").exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_that_is_stopped_in_its_first_evaluation_leaves_nothing(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, Evaluator, "__call__")
    ended = cli.train()
    assert ended.code == 130
    assert ended.err.splitlines()[-1] == "mmrl: stopped before the first iteration; nothing is left in run"
    assert not Path("run").exists()


def test_a_run_of_python_that_is_stopped_before_it_begins_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, run, "build")
    with pytest.raises(KeyboardInterrupt):
        mmrl.train("quickstart", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_terminated_in_its_first_evaluation_can_be_resumed(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever starts it again with the same command line: a scheduler."""
    with monkeypatch.context() as patch:
        interrupt(patch, Evaluator, "__call__", signal.SIGTERM)
        ended = cli.train("iterations=1")
    assert ended.code == 1
    assert "stopped before the first iteration; begin again with: mmrl train --resume run" in ended.out
    assert [path.name for path in Path("run").iterdir() if path.stat().st_size] == ["config.yaml"]
    assert cli("train", "--resume", "run").code == 0


def test_a_second_ctrl_c_ends_a_run_at_once_and_says_how_to_go_on(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, Collector, "__call__", signal.SIGINT, signal.SIGINT)
    ended = cli.train("evaluation=null")
    assert ended.code == 130 and not Path("run").exists()  # no number yet
    interrupt(monkeypatch, Collector, "__call__", signal.SIGINT, signal.SIGINT)
    ended = cli.train("iterations=1")
    assert ended.code == 130
    assert "mmrl: stopped before the first checkpoint; begin again with: mmrl train --resume run" in ended.err
    assert Path("run/config.yaml").is_file() and Path("run/metrics.jsonl").read_text().count("\n") == 1


def test_what_is_resumed_and_stopped_at_once_is_left_as_it_was(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.train("evaluation=null", "iterations=1").code == 0
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    interrupt(monkeypatch, run, "make_trainer")
    ended = cli("train", "--resume", "run", "iterations=2")
    assert (ended.code, ended.err.splitlines()[-1]) == (
        130,
        "mmrl: stopped; go on from the last checkpoint with: mmrl train --resume run",
    )
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_other_commands_say_that_they_were_stopped(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, checks, "plan_summary")
    ended = cli("check", "quickstart")
    assert (ended.code, ended.err) == (130, "mmrl: stopped\n")
