"""The form of an answer: what two answers share that differ in what they say alone."""

import time

import pytest

from mmrl.parsing.answer_format import MAX_PIECES, format_of
from tests.parameters import in_one_test


@in_one_test(
    ("text", "form"),
    [
        ("<think>\nI see 3 boxes.\n</think>\n<answer>(12, 34)</answer>", "<think> prose </think> <answer> </answer>"),
        ("The answer is \\boxed{3}.", "prose box { }"),
        ("Run:\n```python\nx = 1\nprint(x)\n```", "prose ```python prose code ```"),
        ('{"action": "click", "x": [1, 2]}', '{ "action" prose "x" [ ] }'),
        ("def simple():\n    x = 3\n    return x\n", "code prose code"),
        ("if the box is red, the answer is left", "prose"),  # a word of Python does not make it code
        ("1. red\n2) blue\n- green", "item"),
        ("# Title\nSo $x=3$.", "heading prose formula prose formula"),
        ("12, 7", "number"),
        ("  \n", ""),
        ("", ""),
        ("那个 answer", "prose"),
    ],
)
def test_the_form_of_an_answer(text: str, form: str) -> None:
    assert format_of(text) == form


def test_answers_that_differ_in_words_and_numbers_alone_have_one_form() -> None:
    one = "<think>The red box is at 3, 4; so I click.</think><answer>click(3, 4)</answer>"
    other = "<think>A blue box!</think>\n\n<answer>click(191, 8)</answer>"
    assert format_of(one) == format_of(other) != format_of(one.replace("think", "thought"))


def test_a_form_is_short_and_no_text_is_slow() -> None:
    assert len(format_of("<a> b " * 5000).split()) == MAX_PIECES
    assert format_of("word " * 1500 + "<answer>") == "prose <answer>"
    started = time.perf_counter()
    for piece in ("<", "{", "a ", "```", "<a ", "\n- ", '"a', "$", "def ", "   ", "\t\n", "'-", "if x"):
        format_of(piece * 30_000)
    assert time.perf_counter() - started < 2.0


def test_a_form_is_text_of_one_line() -> None:
    assert "\n" not in format_of('a\n<b c="\td">\n"k k":\n```\n') and format_of("<B>") == "<b>"
    with pytest.raises(TypeError):
        format_of(None)  # type: ignore[arg-type]
