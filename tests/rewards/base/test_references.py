"""Words and runs of words; what is no answer, and what is no reference."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given

from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError
from mmrl.rewards.base.references import (
    MAX_LETTERS,
    answer_text,
    composed,
    ngrams,
    reference_texts,
    reference_words,
    words,
)
from tests.rewards.hostile import TEXTS


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
