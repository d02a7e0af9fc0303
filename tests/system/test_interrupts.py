"""Ctrl-C before there is anything to keep: one line, exit code 130, nothing left behind; later the run can go on."""

import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

import pytest

import mmrl
from mmrl.commands import check, train
from mmrl.system import last_resort
from mmrl.system.errors import RunError
from mmrl.system.last_resort import LastResort
from mmrl.system.time_limits import Patience
from mmrl.training.held_out import Evaluator
from mmrl.training.rollouts import Collector
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


@pytest.mark.slow
@pytest.mark.parametrize("place", ["build", "make_trainer", "_beginning"])
def test_a_run_that_is_stopped_before_it_begins_leaves_nothing(
    cli: CommandLine, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    interrupt(monkeypatch, train, place)
    ended = cli.train()
    assert ended.code == 130
    assert ended.err.splitlines()[-1] == "mmrl: stopped before the first iteration; nothing is left in run"
    assert not Path("run").exists()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
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
    interrupt(monkeypatch, train, "build")
    with pytest.raises(KeyboardInterrupt):
        mmrl.train("quickstart", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow  # most of a second each, or more
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_is_resumed_and_stopped_at_once_is_left_as_it_was(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.train("evaluation=null", "iterations=1").code == 0
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    interrupt(monkeypatch, train, "make_trainer")
    ended = cli("train", "--resume", "run", "iterations=2")
    assert (ended.code, ended.err.splitlines()[-1]) == (
        130,
        "mmrl: stopped; go on from the last checkpoint with: mmrl train --resume run",
    )
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_other_commands_say_that_they_were_stopped(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, check, "plan_summary")
    ended = cli("check", "quickstart")
    assert (ended.code, ended.err) == (130, "mmrl: stopped\n")


HANGS = """
import os, signal, threading
from my_rewards import Constant

OVER = threading.Event()

class Hangs(Constant):
    def score(self, batch):
        if batch.iteration == 1:
            for _ in range(self.signals):
                os.kill(os.getpid(), signal.SIGINT)
                OVER.wait(0.05)
            OVER.wait(30)
        return super().score(batch) + 0.001 * batch.group
    signals = 0

class StoppedTwice(Hangs):
    signals = 2
"""


@pytest.fixture
def hangs(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    (cli.folder / "my_hangs.py").write_text(HANGS)
    monkeypatch.delitem(sys.modules, "my_hangs", raising=False)
    yield cli
    sys.modules["my_hangs"].OVER.set()


SLOW = ("evaluation=null", "rollout_groups=1", "iterations=2")


@pytest.mark.slow  # most of a second each, or more
def test_a_second_ctrl_c_does_not_wait_for_a_reward_that_hangs_in_its_thread(hangs: CommandLine) -> None:
    ended = hangs.train("rewards=[{name: my_hangs:StoppedTwice}]", *SLOW)
    assert ended.code == 130
    assert "mmrl: stopped; go on from the last checkpoint with: mmrl train --resume run" in ended.err
    assert not Path("run/lock.json").exists()
    assert hangs("train", "--resume", "run", "iterations=1").code == 0, "what was saved is whole"


@pytest.mark.slow  # most of a second each, or more
@pytest.mark.parametrize("rollout_groups", ["1", "null"])  # in a thread of its own, in the main one
def test_a_run_whose_reward_hangs_says_which_where_and_when(hangs: CommandLine, rollout_groups: str) -> None:
    late = "scoring.call_seconds=0.3"
    ended = hangs.train("rewards=[{name: my_hangs:Hangs}]", *SLOW, late, f"rollout_groups={rollout_groups}")
    assert ended.code == 1
    assert re.search(
        r"mmrl: iteration 2: reward 'Hangs', called with \d samples, has not answered within the 0.3 seconds "
        r"of scoring.call_seconds \(at my_hangs.py:\d+\)\n$",
        ended.err,
    )


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> "Iterator[SimpleQueue[int]]":
    """The codes with which threads end this process, where they end themselves instead, within the test."""
    codes: SimpleQueue[int] = SimpleQueue()
    threads: list[threading.Thread] = []

    def end(code: int) -> NoReturn:
        threads.append(threading.current_thread())
        codes.put(code)
        raise SystemExit

    monkeypatch.setattr("mmrl.system.last_resort.os._exit", end)
    yield codes
    for thread in threads:
        thread.join(10)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of `codes`
def test_what_no_exception_ends_is_ended_by_force_behind_the_second_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, codes: "SimpleQueue[int]"
) -> None:
    monkeypatch.setattr(last_resort, "GRACE", 0.01)
    left: list[str] = []
    with LastResort(lambda: left.append("lock") or "; go on", is_reporting=False) as end:  # type: ignore[func-returns-value]
        end.stop_soon()
        assert codes.get(timeout=10) == 130 and left == ["lock"]
    monkeypatch.setattr(last_resort, "GRACE", 0.05)
    with LastResort(str, is_reporting=False) as end:
        end.stop_soon()
    time.sleep(0.06)
    assert codes.empty(), "what has ended by itself is not ended"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of `codes`
def test_a_reward_that_catches_every_exception_ends_with_its_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], codes: "SimpleQueue[int]"
) -> None:
    monkeypatch.setattr(last_resort, "MARGIN", 0.01)
    monkeypatch.setattr(last_resort, "GLANCE", 0.005)
    patience = Patience(0.1)  # a busy machine reaches the loop before that
    monkeypatch.setattr("mmrl.system.last_resort.faulthandler.dump_traceback_later", lambda *_, **__: None)
    with LastResort(str) as end:
        end.guard([patience])
        with suppress(RunError), patience.call("reward 'stubborn'", None):
            while codes.empty():
                with suppress(BaseException):
                    time.sleep(0.01)
    assert codes.get(timeout=10) == 1
    assert capfd.readouterr().err.startswith("mmrl: reward 'stubborn' has not answered within the 0.1 seconds")
