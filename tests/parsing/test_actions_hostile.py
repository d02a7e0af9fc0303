"""No text makes a reader of actions raise anything but ParseError, or hang."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.parsing.actions.dialects import DIALECTS, DialectName
from mmrl.parsing.answers import MAX_CHARACTERS, ParseError
from tests.dialects import NAMES, SCREEN

PIECES = [
    *("<tool_call>", "</tool_call>", '{"name": "computer_use", "arguments": ', '{"action": "left_click", ', "}", "}}"),
    *(
        '"coordinate": [',
        "]",
        "1",
        "23",
        ",",
        "1e999",
        '"keys": ["a"',
        '"type", "text": ',
        '"',
        "\\ud83d",
        "null",
        "\\",
    ),
    *(
        "Action: ",
        "\nAction:",
        "click(",
        "start_box='",
        "'(1,2)'",
        ")",
        "'",
        "type(content='",
        "\\n",
        "(",
        "[",
        "=",
        "#",
    ),
    *(
        "pyautogui.",
        "click",
        "write",
        "(x=1, y=2)",
        "import os",
        "\n",
        ";",
        "```",
        "python\n",
        "'''",
        '"""',
        "__class__",
    ),
    *("hotkey(", "scroll(", "0", "-3", "٣", "WAIT", "DONE", "True", "\\x", "\\U00110000", "eval('1')", ".", "9" * 400),
]
TEXTS = st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=25).map("".join)


def attempt(name: DialectName, text: str) -> None:
    """Only ParseError may escape, and what is understood can be stored."""
    try:
        action = DIALECTS[name].parse(text, SCREEN)
    except ParseError as error:
        assert len(str(error)) < 1000, "a message does not repeat a long text"
    else:
        (action.text or "").encode("utf-8")


@given(TEXTS)
def test_nothing_but_a_parse_error_escapes(text: str) -> None:
    for name in NAMES:
        attempt(name, text)


@pytest.mark.slow  # ten thousand texts
@settings(max_examples=10_000, deadline=None)
@given(TEXTS)
def test_nothing_but_a_parse_error_escapes_from_ten_thousand_texts(text: str) -> None:
    for name in NAMES:
        attempt(name, text)


HOSTILE = [
    *(
        "(",
        "[",
        "'",
        '"',
        "'''",
        "''",
        '"""',
        "\\",
        "\\'",
        "#",
        "\n",
        ";",
        " ",
        "\t\\\n",
        "a",
        "a.",
        "a(",
        "a()",
        "a()\n",
    ),
    *(
        "1",
        "1,",
        "(1,2),",
        "-",
        "'a',",
        "\\x",
        "\\x41",
        "```",
        "Action:",
        "\nAction:",
        "click(",
        "'\\",
        "{",
        "[[",
        '{"a":',
    ),
    *("<tool_call>", "</tool_call>", "' ", "')", "')\\"),
]
STARTS = ["", "Action: type(content='", "Action: click(", "pyautogui.write('", "pyautogui.hotkey(", "<tool_call>"]


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", HOSTILE)
def test_a_megabyte_of_hostile_text_does_not_hang_a_parser(piece: str) -> None:
    for start in STARTS:
        end = "</tool_call>" if start.startswith("<") else "')" if start.startswith("Action") else ""
        text = start + piece * ((MAX_CHARACTERS - len(start) - len(end)) // len(piece)) + end
        for name in NAMES:
            attempt(name, text)
