"""Words, common subsequences and edits against slow loops; what is no answer, and what is no reference."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError
from mmrl.rewards.base.references import (
    MAX_LETTERS,
    answer_text,
    composed,
    edit_distance,
    ngrams,
    reference_texts,
    reference_words,
    shared_length,
    words,
)
from tests.rewards.hostile import TEXTS

FEW = st.text("abc", max_size=90)


def table(left: str, right: str, *, shared: bool) -> int:
    """Both numbers by the table of all prefixes."""
    row = [0 if shared else n for n in range(len(right) + 1)]
    for i, one in enumerate(left, 1):
        last, row = row, [0 if shared else i]
        for j, two in enumerate(right, 1):
            if shared:
                row.append(last[j - 1] + 1 if one == two else max(last[j], row[j - 1]))
            else:
                row.append(min(last[j - 1] + (one != two), last[j] + 1, row[j - 1] + 1))
    return row[-1]


@given(FEW, FEW)
def test_numbers_of_bits_are_those_of_the_table(left: str, right: str) -> None:
    assert shared_length(left, right) == table(left, right, shared=True)
    assert edit_distance(left, right) == table(left, right, shared=False)


@pytest.mark.timeout(60)
def test_the_longest_texts_are_compared_at_once() -> None:
    left, right = [str(n) for n in range(MAX_LETTERS)], [str(n) for n in range(MAX_LETTERS, 0, -1)]
    assert shared_length(left, right) == 1
    assert edit_distance(left, left[1:]) == 1


def test_words_are_without_capitals_and_signs_and_of_all_scripts() -> None:
    assert words("The CAT's 3.5_dogs, naïve!") == ["the", "cat", "s", "3", "5", "dogs", "naïve"]
    assert words("猫が好き ok") == ["猫", "が", "好", "き", "ok"]
    assert words("Привет, мир") == ["привет", "мир"]
    assert words("?! \u200b\x00") == []


def test_runs_of_words_are_counted() -> None:
    assert ngrams(["a", "b", "a", "b"], 2) == {("a", "b"): 2, ("b", "a"): 1}
    assert not ngrams(["a"], 2)


def test_letters_and_their_accents_are_one() -> None:
    assert composed("e\u0301") == "é" and composed("²") == "²"
    with pytest.raises(ParseError, match="30 accents"):
        composed("e" + "\u0301" * 31)


@given(TEXTS)
def test_any_text_is_composed_or_refused(text: str) -> None:
    try:
        assert composed(text) == unicodedata.normalize("NFC", text)
    except ParseError:
        assert sum(map(bool, map(unicodedata.combining, text))) > 30


def test_what_is_no_answer() -> None:
    assert answer_text("<think>b</think><answer> a\n</answer>", "answer") == "a"
    assert answer_text(" a ", None) == "a"
    for text in ("a", "<answer>a</answer><answer>a</answer>", f"<answer>{'a' * (MAX_LETTERS + 1)}</answer>"):
        with pytest.raises(ParseError):
            answer_text(text, "answer")


@pytest.mark.parametrize("answer", [None, 3, "", " ", [], ["a", ""], ["a", 3], {"a": 1}, [["a"]]], ids=str)
def test_a_target_that_is_no_text_is_an_error(answer: Any) -> None:
    with pytest.raises(ValueError, match=r"target\.answer must be a text or a list of texts, got"):
        reference_texts(Prompt("?", target={"answer": answer}))


def test_a_target_that_cannot_be_compared_with_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"cannot be compared with: an answer may have 10000 letters") as error:
        reference_texts(Prompt("?", target={"answer": "a" * (MAX_LETTERS + 1)}))
    assert not isinstance(error.value, ParseError), "nobody takes it for a wrong answer"
    with pytest.raises(ValueError, match="must have words"):
        reference_words(Prompt("?", target={"answer": ["a", "!"]}))
    assert reference_words(Prompt("?", target={"answer": ("A b", "c")})) == [["a", "b"], ["c"]]
