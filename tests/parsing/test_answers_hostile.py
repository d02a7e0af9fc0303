"""No text makes a reader raise anything but ParseError, or hang."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.parsing.answers import (
    MAX_CHARACTERS,
    MAX_JSON_CHARACTERS,
    ParseError,
    extract,
    read_box,
    read_boxed,
    read_json,
    read_literal,
    read_numbers,
    read_place,
    read_point,
    read_span,
    read_spans,
    tagged,
)

READERS: dict[str, Callable[[str], object]] = {
    "tagged": lambda text: tagged(text, ("think", "answer")),
    "extract": lambda text: extract(text, "answer"),
    "numbers": read_numbers,
    "place": read_place,
    "point": read_point,
    "box": read_box,
    "json": read_json,
    "literal": read_literal,
    "boxed": read_boxed,
    "span": read_span,
    "spans": read_spans,
}
# Pieces of what models write; joined at random they come near to every pattern.
PIECES = [
    *("<think>", "</think>", "<answer>", "</answer>", "<point>", "</point>", "<|box_start|>", "<|box_end|>"),
    *("(", ")", "[", "]", "{", "}", ",", ", ", " ", "\n", ".", "-", "+", "1", "23", "4.5", "1e999", "NaN", "Infinity"),
    *('"bbox_2d"', '"point_2d"', ":", '"', "\\", "\u0661\u0662", "²", "\u2003", "null", "true", "9" * 30, "\x00", "'"),
    *(" to ", "and", " s", "2.5"),
]
TEXTS = st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


def attempt(reader: Callable[[str], object], text: str) -> None:
    """Only ParseError may escape."""
    try:
        reader(text)
    except ParseError as error:
        assert len(str(error)) < 600, "a message does not repeat a long text"


@pytest.mark.slow
@given(TEXTS)
def test_nothing_but_a_parse_error_escapes(text: str) -> None:
    for reader in READERS.values():
        attempt(reader, text)


@pytest.mark.slow  # ten thousand texts
@settings(max_examples=10_000, deadline=None)
@given(TEXTS)
def test_nothing_but_a_parse_error_escapes_from_ten_thousand_texts(text: str) -> None:
    for reader in READERS.values():
        attempt(reader, text)


HOSTILE = [
    *(
        "(",
        "[",
        "((1,",
        "( ",
        "(1",
        "(1 ",
        "1",
        "1 ",
        "1,",
        "(1,2),",
        "(1,2",
        "[1,2,3,",
        "(1,2),(3,",
        "<point>",
        "<point>1 ",
    ),
    *(
        "<think>",
        "<answer>",
        "</answer>",
        "<think></think><answer>{[1,1,1,1]",
        '"',
        '\\"',
        '"\\',
        '{"a":',
        "[]",
        "{}",
        " ",
    ),
    *("9", "-", ".", "\n", "\u0661", "[1],", "[],", '"",', "[1,2,3,4]", "\ud800"),
]


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", HOSTILE)
def test_a_megabyte_of_hostile_text_does_not_hang_a_reader(piece: str) -> None:
    start = "[" if piece in ("[1],", "[],", '"",') else ""
    for name, reader in READERS.items():
        longest = MAX_JSON_CHARACTERS if name in ("json", "literal") else MAX_CHARACTERS
        text = start + piece * ((longest - 1) // len(piece))
        attempt(reader, text)


def test_a_longer_text_is_refused_unread() -> None:
    for reader in READERS.values():
        with pytest.raises(ParseError, match=r"may have 10*0 characters, got 1000001"):
            reader("1" * (MAX_CHARACTERS + 1))
