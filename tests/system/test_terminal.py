"""Texts of others cannot steer a terminal: not in prints, logs, tracebacks, bars, nor through the command line."""

import io
import json
import logging
import re
import sys
import traceback
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.progress import Progress
from tqdm import tqdm  # type: ignore[import-untyped]

import mmrl
from mmrl import cli as command
from mmrl.commands import sample
from mmrl.core.contracts import ConfigError
from mmrl.system.progress_bars import Screen
from mmrl.system.terminal import PlainStream, check_arguments, guard_streams, printable
from tests.parameters import in_one_test
from tests.tiny_cli import CommandLine, Ended, command_line

TITLE, CLEAR, RESET, CSI, ASK = "\x1b]0;owned\x07", "\x1b[2J", "\x1bc", "\x9b2J", "\x1b[6n"
HOSTILE = f"a{TITLE}b{CLEAR}c{RESET}d{CSI}e{ASK}f\bg\rh\u202ei"
PIECES = [
    "\x1b",
    "[",
    "]",
    "m",
    "0;",
    "A",
    "2J",
    "\x07",
    "\x08",
    "\r",
    "\n",
    "\x9b",
    "\x9d",
    "\x85",
    "\u202e",
    "\x7f",
    "é",
]
BIDI = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
RICH_CODES = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[12]?[AK]|\r")


class Terminal(io.StringIO):
    """Remembers what is written to it, and says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def guarded_terminal(patch: pytest.MonkeyPatch) -> Terminal:
    """What the streams of this process write to from now on, with our guard before it."""
    terminal = Terminal()
    patch.setattr(sys, "stdout", terminal)
    patch.setattr(sys, "stderr", terminal)
    patch.setenv("TERM", "xterm-256color")
    guard_streams()
    return terminal


def steering(text: str) -> set[str]:
    """The characters of a text that a terminal does not show."""
    return {one for one in text if unicodedata.category(one) == "Cc" or unicodedata.bidirectional(one) in BIDI} - {
        *"\n\t"
    }


@in_one_test(
    ("text", "shown"),
    [
        ("two\nlines\tand Größe 日本 🙂 שלום", "two\nlines\tand Größe 日本 🙂 שלום"),
        ("\x1b[1;31mred\x1b[0m \x1b[8mhidden\x1b[m", "red hidden"),
        (TITLE + CLEAR, r"\u001b]0;owned\u0007\u001b[2J"),
        ("\x9b31m\x7f\x00", r"\u009b31m\u007f\u0000"),
        ("gone\rhere\r\nnext", "gone\nhere\nnext"),
        ("\x1b\x1b[m[2J", r"\u001b[2J"),  # what is left out leaves nothing behind that steers
        ("user\u202egpj.exe", r"user\u202egpj.exe"),
        ("\udc80", r"\udc80"),
    ],
)
def test_what_could_steer_is_written_out_and_the_rest_stays(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_nothing_that_steers_is_left(text: str) -> None:
    assert steering(printable(text)) == set()


def test_json_keeps_its_meaning() -> None:
    found = {"all": "".join(map(chr, range(0x2100))), "half": "\ud800", HOSTILE: [HOSTILE, 1.5, None]}
    for is_ascii in (True, False):
        assert json.loads(printable(json.dumps(found, ensure_ascii=is_ascii, indent=2))) == found


def test_prints_logs_and_tracebacks_are_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = guarded_terminal(monkeypatch)
    print(HOSTILE, end="")
    sys.stdout.writelines([HOSTILE, HOSTILE])
    assert logging.lastResort is not None  # what writes logs where nobody says how
    logging.lastResort.handle(logging.makeLogRecord({"msg": HOSTILE, "levelno": logging.WARNING}))
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        traceback.print_exception(error)
    text = terminal.getvalue()
    assert text.count("owned") == 5 and steering(text) == set()
    assert not sys.stdout.isatty()  # so that others do not colour what they write


def test_a_stream_is_guarded_once_and_a_closed_one_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", None)  # as of a program without one
    guard_streams()
    once = sys.stdout
    guard_streams()
    assert isinstance(once, PlainStream) and sys.stdout is once and sys.stderr is None


def test_the_bars_of_tqdm_move_as_they_must_and_say_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = guarded_terminal(monkeypatch)
    with tqdm(total=2, desc=f"\r{CLEAR}file", disable=None, mininterval=0) as first:
        with tqdm(total=2, desc="second", disable=None, position=1, leave=False, mininterval=0) as second:
            second.update()
        first.update()
    text = terminal.getvalue()
    assert "second:  50%" in text and r"\u001b[2Jfile:  50%" in text
    assert "\x1b[A" in text and steering(text.replace("\x1b[A", "")) == {"\r"}


def test_what_is_printed_above_a_bar_is_clean_and_the_bar_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = guarded_terminal(monkeypatch)
    screen = Screen()
    with Progress(console=screen) as bar:
        bar.add_task("work", total=2, completed=1)
        print(HOSTILE.replace("\r", ""))
        screen.print(HOSTILE, markup=False)
        print("nested\x1b\x1b[1A[1A")
        sys.stderr.write("half [/a] line\x1b")
        sys.stderr.flush()
    drawn = terminal.getvalue()
    assert "\x1b[?25l" in drawn and re.search(r"\x1b\[38;5;[0-9]+m", drawn)  # no cursor, and the bar in its colours
    text = RICH_CODES.sub("", drawn)
    assert steering(text) == set() and "work" in text and text.count("owned") == 2
    assert r"nested\u001b[1A" in text and r"half [/a] line\u001b" in text


def test_every_console_is_a_screen() -> None:
    folder = Path(mmrl.__file__).parent
    files = [file for file in folder.rglob("*.py") if re.search(r"\bConsole\(", file.read_text("utf-8"))]
    assert files == []


def test_arguments_that_could_steer_are_refused() -> None:
    check_arguments(["--prompt", "two\r\nlines\tand שלום", "\udc80.yaml"])
    for word in ("a\x1bb", "\x9b31m", "\x07"):
        with pytest.raises(ConfigError, match=r"^the argument '[^\x00-\x1f\x7f-\x9f]*' holds a control character"):
            check_arguments(["check", word])


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    (tmp_path / "hostile_rewards.py").write_text(REWARDS)
    (tmp_path / "hostile.yaml").write_text(json.dumps({HOSTILE: 1}))
    (tmp_path / "samples.json").write_text(json.dumps({"samples": [{"prompt": HOSTILE, "text": HOSTILE}]}))
    (tmp_path / "answers.jsonl").write_text(json.dumps({"prompt": HOSTILE, "response": HOSTILE}) + "\n")
    return command_line(tmp_path, monkeypatch, capsys)


REWARDS = """
import logging

def repeats(text):
    print(text)
    logging.getLogger("mmrl.test").warning(text)
    return 1.0

def raises(text):
    raise ValueError(text)
"""


def owned(ended: Ended) -> int:
    """How often a hostile text was shown, of which nothing steers."""
    assert steering(ended.out + ended.err) == set()
    return (ended.out + ended.err).count("owned")


def test_answers_that_a_reward_repeats_reach_no_terminal_as_they_are(cli: CommandLine) -> None:
    ended = cli("score", "answers.jsonl", "--reward", "python function=hostile_rewards:raises")
    assert ended.code == 1 and owned(ended)
    ended = cli("score", "answers.jsonl", "--reward", "python function=hostile_rewards:repeats", "--json")
    assert ended.code == 0 and owned(ended)
    assert json.loads(ended.out)


def test_answers_of_a_model_reach_no_terminal_as_they_are(cli: CommandLine) -> None:
    cli.patch.setattr(sample, "sample", lambda *given, **settings: cli.folder)
    assert owned(cli("sample", "run", "--prompt", "x")) == 2


def test_settings_reach_no_terminal_as_they_are(cli: CommandLine) -> None:
    ended = cli("check", "hostile.yaml")
    assert ended.code == 2 and owned(ended)
    ended = cli("check", f"{HOSTILE}.yaml")
    assert ended.code == 2 and owned(ended) and "holds a control character" in ended.err


def test_the_traceback_of_debug_reaches_no_terminal_as_it_is(cli: CommandLine) -> None:
    cli.patch.setattr(sys, "argv", ["mmrl", "check", "hostile.yaml", "--debug"])
    with pytest.raises(ConfigError) as raised:
        command.main()
    traceback.print_exception(raised.value)  # as Python does when it ends
    assert owned(Ended(1, *cli.capture.readouterr()))
