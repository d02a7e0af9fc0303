"""A span of seconds in an answer: the last one, in the ways that the field writes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.parsing.answers import MAX_SPANS, ParseError, read_span, read_spans
from tests.parameters import in_one_test


@in_one_test(
    ("text", "span"),
    [
        ("3.5 to 7.2", (3.5, 7.2)),
        ("The event happens between 3 and 7.25 seconds.", (3.0, 7.25)),
        ("from 3.5s to 7s", (3.5, 7.0)),
        ("3.5 seconds to 7 seconds", (3.5, 7.0)),
        ("1 sec, 2 secs", (1.0, 2.0)),
        ("[3.5, 7.2]", (3.5, 7.2)),
        ("3-7", (3.0, 7.0)),
        ("3 \u2013 7", (3.0, 7.0)),
        ("time:3 to 7.", (3.0, 7.0)),
        ("- 3 to 7", (3.0, 7.0)),
        ("3to7", (3.0, 7.0)),
        ("first 1 to 2, then 3 to 4", (3.0, 4.0)),  # as 1 to 2, and then 3 to 4
        ("1 to 2. No: 10.5 to 11", (10.5, 11.0)),
        ("1 to 2 to 3", (2.0, 3.0)),
        ("3 TO 7", (3.0, 7.0)),
        ("3 Sec AND 7 S", (3.0, 7.0)),
        ("-3 to 7", (3.0, 7.0)),  # as VideoChat-R1 and Time-R1
        ("from +3 to 7", (3.0, 7.0)),
        ("5 to 2", (5.0, 2.0)),
        ("4 to 4", (4.0, 4.0)),
        ("3 to 7 of 20", (3.0, 7.0)),
        ("0 to " + "9" * 12, (0.0, 999999999999.0)),
    ],
)
def test_the_last_span_of_a_text(text: str, span: tuple[float, float]) -> None:
    assert read_span(text) == span


@in_one_test(
    "text",
    ["", "5", "3 7", "three to seven", "v-3 to 7", "1e-3 to 7", "3 to -7", "3 to +7", "1:20 to 1:30", "0:03 to 7",
     "3 to 7:10", "1e3 to 2e3", "3 to 7e5", "1.2.3 to 4", "1 to 2.3.4", "nan to inf", "3 sheep and 7", "v3 to 7",
     "3 to " + "9" * 13, "9" * 13 + " to 3", "\u0661 to \u0662", ".5 to 7"],
)  # fmt: skip
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(ParseError, match=r"there is no span of seconds, like `3\.5 to 7\.2`, in"):
        read_span(text)


@given(
    st.floats(0, 1e6).map(lambda x: round(x, 3)),
    st.floats(0, 1e6).map(lambda x: round(x, 3)),
    st.sampled_from([" to ", " and ", "-", ", ", " - ", " s to "]),
    st.sampled_from(["", "It is 1 to 2. ", "<answer>", "at "]),
    st.sampled_from(["", ".", " seconds", "</answer>", " s.", ")"]),
)
def test_what_is_written_is_read(start: float, end: float, until: str, before: str, behind: str) -> None:
    assert read_span(f"{before}{start:.3f}{until}{end:.3f}{behind}") == (start, end)


@in_one_test(
    ("text", "spans"),
    [
        ("[(5.2, 30.4)]", ((5.2, 30.4),)),
        (" [(5, 30), (31.25,40)]\n", ((5.0, 30.0), (31.25, 40.0))),
        ("[(5, 30), (31, 40),]", ((5.0, 30.0), (31.0, 40.0))),
        ("[ ( 30 , 5 ) ]", ((30.0, 5.0),)),
        ("[]", ()),
        ("[[5, 30], [31, 40]]", ((5.0, 30.0), (31.0, 40.0))),
        ("5 TO 20 and -30 to 40", ((5.0, 20.0), (30.0, 40.0))),
    ],
)
def test_all_spans_of_a_text(text: str, spans: tuple[tuple[float, float], ...]) -> None:
    assert read_spans(text) == spans


@in_one_test(
    "text",
    ["[(1, 2)", "[(1, 2, 3)]", "[(1)]", "[(1, 2) (3, 4)]", "[(1, 2)] or [(3, 4)]", "[(-1, 2)]", "[(1e3, 2)]",
     "[(1, 2), [3, 4]]", "[,]", "[(__import__('os'), 2)]", "[" + "(1, 2)," * (MAX_SPANS + 1) + "]", "[" + "(" * 99_999],
)  # fmt: skip
def test_what_is_no_list_of_spans(text: str) -> None:
    with pytest.raises(ParseError):
        read_spans(text)
