"""Reading model text: one rule for tags, the formats of points, boxes and spans, JSON and literals."""

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.parsing.answers import (
    MAX_SPANS,
    ParseError,
    check_tags,
    extract,
    read_box,
    read_boxed,
    read_json,
    read_literal,
    read_numbers,
    read_place,
    read_point,
    read_spans,
    tagged,
)
from tests.parameters import in_one_test


def test_the_parts_in_tags_and_what_is_around_them() -> None:
    found = tagged("a <think>b</think> c\n<answer> d </answer> e", ("think", "answer"))
    assert found.contents == ("b", " d ") and found.outside == "a  c\n e"
    assert extract("x <answer>1</answer> y", "answer") == "1"
    assert extract("as it is", None) == "as it is"


@in_one_test(
    ("text", "message"),
    [
        ("5", "needs one <answer> and one </answer>, got 0 and 0"),
        ("<answer>5", "got 1 and 0"),
        ("5</answer>", "got 0 and 1"),
        ("</answer>5<answer>", "<answer>...</answer> is not in its place"),
        ("<answer>5</answer><answer>6</answer>", "got 2 and 2"),
        ("<answer><answer>5</answer></answer>", "got 2 and 2"),
        ("<Answer>5</Answer>", "got 0 and 0"),
        ("<answer >5</answer>", "got 0 and 1"),
    ],
)
def test_an_answer_is_one_well_formed_pair(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        extract(text, "answer")
    assert message in str(caught.value)


@in_one_test("tags", [(), ("a", "a"), ("a b",), ("",), ("<a>",), ("1a",)])
def test_only_names_are_tags(tags: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="tags must be different names"):
        check_tags(tags)


@in_one_test(
    ("text", "point"),
    [
        ("(3, 4)", (3, 4)),
        ("[3,4]", (3, 4)),
        ("( -3.5 ,\n+4. )", (-3.5, 4)),
        ("click at (.5, 0.25) now", (0.5, 0.25)),
        ('{"point_2d": [3, 4], "label": "button (2)"}', (3, 4)),
        ('```json\n[{"point_2d": [3, 4]}]\n```', (3, 4)),
        ("<point>3 4</point>", (3, 4)),
        ("<point> 3, 4 </point>", (3, 4)),
        ("<|box_start|>(3,4)<|box_end|>", (3, 4)),
        ("(0.3333333333333333, 000000000012)", (0.3333333333333333, 12)),
    ],
)
def test_a_point_is_read(text: str, point: tuple[float, float]) -> None:
    assert read_point(text) == read_place(text) == point
    with pytest.raises(ParseError, match="a box has four numbers"):
        read_box(text)


@in_one_test(
    ("text", "box"),
    [
        ("[1, 2, 3, 4]", (1, 2, 3, 4)),
        ("(1,2,3,4)", (1, 2, 3, 4)),
        ('{"bbox_2d": [1, 2, 3, 4], "label": "cat"}', (1, 2, 3, 4)),
        ("<|box_start|>(1,2),(3,4)<|box_end|>", (1, 2, 3, 4)),
        ("(1, 2), (3, 4)", (1, 2, 3, 4)),
        ("<box>[[1, 2, 3, 4]]</box>", (1, 2, 3, 4)),
        ("[9, 8, 3, 4]", (9, 8, 3, 4)),  # as written
        ("the box is [-1.5, 2, 3.25, 4].", (-1.5, 2, 3.25, 4)),
    ],
)
def test_a_box_is_read(text: str, box: tuple[float, ...]) -> None:
    assert read_box(text) == read_place(text) == box
    with pytest.raises(ParseError, match="a point has two numbers"):
        read_point(text)


@in_one_test(
    "text",
    [
        *("", "3 4", "3, 4", "(3 4)", "(3, 4", "3, 4)", "(3, 4]", "(3)", "(1, 2, 3)", "[1, 2, 3, 4, 5]", "(a, b)"),
        *(
            "(1e3, 4)",
            "(1e999, 4)",
            "(inf, 4)",
            "(NaN, 4)",
            "(1_0, 4)",
            "(0x1, 4)",
            "(1" + 12 * "0" + ", 4)",
            "(--1, 4)",
        ),
        *(
            "(\u0661, \u0662)",
            "(\uff13, \uff14)",
            "(²,³)",
            "(3\u2003, 4)",
            "(1+1, 4)",
            "(., 4)",
            "([3, 4)",
            "<point>3 4",
            "<point>34</point>",
        ),
        *("(1, 2) (3, 4)", "[1, 2], [3, 4]", "(1, 2), (3, 4), (5, 6)", "[1, 2, 3, 4] [1, 2, 3, 4]", "(1,2) [1,2,3,4]"),
    ],
)
def test_what_is_not_one_place_is_none(text: str) -> None:
    with pytest.raises(ParseError):
        read_place(text)


@in_one_test(
    ("text", "numbers"),
    [("1, 2.5 -3", (1, 2.5, -3)), (" [7] ", (7,)), ("( 1 , 2 )", (1, 2)), ("12", (12,)), ("1\n2", (1, 2))],
)
def test_numbers_alone_are_read(text: str, numbers: tuple[float, ...]) -> None:
    assert read_numbers(text) == numbers


@in_one_test("text", ["", "[]", "1,,2", "1, 2,", "one", "1e5", "1 (2)", "[1, 2)", "9" * 13, "1-2"])
def test_other_text_is_no_numbers(text: str) -> None:
    with pytest.raises(ParseError, match="not numbers alone"):
        read_numbers(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12) + 1, 10**12 - 1) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_json_is_what_the_library_reads(value: Any) -> None:
    assert read_json(json.dumps(value)) == value


def test_json_numbers_keep_their_kind() -> None:
    value: Any = read_json('[1, -2, 0.25, "[[["]')
    assert value == [1, -2, 0.25, "[[["] and [type(item) for item in value[:3]] == [int, int, float]


@in_one_test(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("{'a': 1}", "not JSON"),
        ("[1e999]", "not a number"),
        ("[1e2]", "not a number"),
        ("[NaN]", "not a number"),
        ("[-Infinity]", "not a number"),
        (f"[{'9' * 5000}]", "not a number"),
        ('{"a": 1, "a": 2}', "twice"),
        ("[" * 21 + "]" * 21, "deeper than 20"),
        ("[" * 90_000, "deeper than 20"),
        ('{"a":' * 15_000, "deeper than 20"),
        ("[" * 100_001, "may have 100000 characters, got 100001"),
    ],
)
def test_other_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        read_json(text)


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**11), 10**11) | st.text(st.characters(codec="ascii"), max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "it's", '"']), inner),
        max_leaves=8,
    )
)
def test_a_literal_is_what_python_reads(value: Any) -> None:
    text = repr(value)
    if "\\x" in text:  # JSON has no such escape: it is refused
        return
    assert read_literal(text) == ast.literal_eval(text) == value
    assert read_literal(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"""['it\'s', "a 'b'", 'say "x"', '\\']""", ["it's", "a 'b'", 'say "x"', "\\"]),
        ("""{'a': True, 'True': None, "b": 'None'}""", {"a": True, "True": None, "b": "None"}),
    ],
)
def test_quotes_inside_of_quotes(text: str, value: Any) -> None:
    assert read_literal(text) == value


@in_one_test("text", ["", "(1, 2)", "{1, 2}", "[1, ...]", "['a]", "['a' 'b']", "f('a')", "1 + 1", "[1,]", "Nonesuch"])
def test_other_literals_are_refused(text: str) -> None:
    with pytest.raises(ParseError):
        read_literal(text)


@in_one_test(
    ("text", "content"),
    [
        (r"\boxed{3}", "3"),
        (r"<think>\boxed{1}, \boxed{2}</think> \boxed{\frac{a}{b}} it is", r"\frac{a}{b}"),
        (r"\boxed{\text{a \} b}}", r"\text{a \} b}"),
        (r"\boxed{{a}{b}}}", "{a}{b}"),
        (r"\boxed{}", ""),
        (r"\boxed{a\\}", r"a\\"),  # a line break, then the end
    ],
)
def test_a_box_is_read_to_its_own_brace(text: str, content: str) -> None:
    assert read_boxed(text) == content


@in_one_test("text", ["", "3", r"\boxed{3", r"\boxed{3\}", r"\boxed{1}\boxed{1}", r"\boxed{1}</think>2"])
def test_other_texts_hold_no_box(text: str) -> None:
    with pytest.raises(ParseError):
        read_boxed(text)


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("[[3.5, 7.2], [9, 12]]", ((3.5, 7.2), (9, 12))),
        (" [3, 1]\n", ((3, 1),)),
        ("[]", ()),
        ("1 to 2 and 3 to 4", ((1, 2), (3, 4))),
        ("first 1.5 s to 3 seconds, then 4s-5s.", ((1.5, 3), (4, 5))),
        ("2 \u2013 3; 7 and 4", ((2, 3), (7, 4))),
    ],
    ids=range(6),
)
def test_all_spans_of_a_text_in_their_order(text: str, spans: tuple[tuple[float, float], ...]) -> None:
    assert read_spans(text) == spans


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", "no span of seconds"),
        ("", "no span of seconds"),
        ("1:20 to 1:30", "no span of seconds"),
        ("1, 2", "no span of seconds"),
        ("[[1, 2], 3]", r"a span is \[start, end\] in seconds, got '3'"),
        ("[[1, 2, 3]]", "a span is"),
        ("[1, true]", "a span is"),
        ("[1, 2] and more", "not JSON"),
        ("[1, 1e999]", "not a number"),
        ("1 to 2 " * (MAX_SPANS + 1), f"may have {MAX_SPANS} spans"),
        ("[" + ", ".join(["[1, 2]"] * (MAX_SPANS + 1)) + "]", f"may have {MAX_SPANS} spans"),
    ],
    ids=range(11),
)
def test_what_is_no_list_of_spans(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        read_spans(text)
