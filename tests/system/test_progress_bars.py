"""Progress of commands: a bar where there is a terminal, lines elsewhere, nothing for what is quick."""

import io
import threading

import pytest
from rich.console import Console

from mmrl.system import progress_bars
from mmrl.system.progress_bars import Counter, TrainingBar

PATIENCE = 60.0  # for a thread of the test's own


class Terminal(io.StringIO):
    """A stream that says when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.has_text = threading.Event()

    def write(self, text: str) -> int:
        self.has_text.set()
        return super().write(text)


def console(stream: io.StringIO, *, is_terminal: bool) -> Console:
    return Console(file=stream, force_terminal=is_terminal, width=100, color_system=None, legacy_windows=False)


def counter(
    stream: io.StringIO, *, is_terminal: bool, patience: float | None = None, every: float | None = None
) -> Counter:
    return Counter("evaluation", 8, console(stream, is_terminal=is_terminal), patience=patience, every=every)


def test_without_a_terminal_a_line_now_and_then_says_how_far_it_is() -> None:
    stream = Terminal()
    with counter(stream, is_terminal=False, every=0.001) as counted:
        counted.add(2)
        counted.begin(lambda: 3.7)
        assert stream.has_text.wait(PATIENCE)
        stream.has_text.clear()
        assert stream.has_text.wait(PATIENCE)
    assert stream.getvalue().splitlines()[-1] == "evaluation: 5 of 8 prompts after 0:00:00"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_nothing_is_shown_of_what_is_quick(is_terminal: bool) -> None:
    stream = Terminal()
    with counter(stream, is_terminal=is_terminal, patience=PATIENCE, every=PATIENCE) as counted:
        counted.add(8)
    assert stream.getvalue() == ""


def test_on_a_terminal_a_bar_is_drawn_and_goes_at_the_end() -> None:
    stream = Terminal()
    with counter(stream, is_terminal=True, patience=0.0) as counted:
        counted.add(3)
        assert stream.has_text.wait(PATIENCE)
    assert "evaluation: " in stream.getvalue()
    assert "\x1b[2K" in stream.getvalue().rpartition("evaluation")[2]  # its line is cleared


def test_the_steps_of_a_chunk_never_count_beyond_the_total() -> None:
    counted = counter(Terminal(), is_terminal=False)
    counted.add(6)
    counted.begin(lambda: 9.0)
    assert counted.done == 8.0
    counted.add(2)
    assert counted.done == 8.0


@pytest.mark.slow  # most of a second each, or more
def test_the_bar_of_an_evaluation_stands_with_that_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    training = TrainingBar(5, console=console(stream, is_terminal=True))
    training.update(1, {"reward/mean": 0.5})
    monkeypatch.setattr(progress_bars, "PATIENCE", 0.0)
    with training.counter("evaluation", 8) as counted:
        counted.add(4)
        assert shows(stream, "evaluation: 4 of 8")
    training.close()
    last = stream.getvalue().rpartition("evaluation")[2]
    assert "1/5  reward 0.5" in last  # its own bar alone is left


def test_a_bar_on_stderr_leaves_alone_what_is_printed_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Terminal()
    with counter(stream, is_terminal=True, patience=0.0):
        assert stream.has_text.wait(PATIENCE)
        print("a result")
    assert capsys.readouterr().out == "a result\n"
    assert "a result" not in stream.getvalue()


def shows(stream: Terminal, text: str) -> bool:
    """Waits until the text was written."""
    while text not in stream.getvalue():
        stream.has_text.clear()
        if text not in stream.getvalue() and not stream.has_text.wait(PATIENCE):
            return False
    return True
