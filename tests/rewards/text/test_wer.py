"""Word and letter error rates against a slow table, torchmetrics and numbers by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards.text.wer import Wer
from tests.rewards.example import answers
from tests.rewards.sentences import EXAMPLE as EXAMPLE
from tests.rewards.tables import edits

SENTENCES = st.lists(st.sampled_from(["the", "The", "cat", "dog.", "é", "ab"]), min_size=1, max_size=9).map(" ".join)


def judge(texts: list[str], answer: Any, **settings: Any) -> list[float]:
    found: list[float] = Wer(**({"tag": None} | settings)).score(answers(texts, {"answer": answer})).tolist()
    return found


@pytest.mark.slow
@given(answered=SENTENCES, reference=SENTENCES)
def test_the_table_of_all_prefixes_agrees(answered: str, reference: str) -> None:
    from torchmetrics.functional.text import word_error_rate  # takes seconds to import

    words = edits(answered.split(), reference.split()) / len(reference.split())
    assert judge([answered], reference) == pytest.approx([max(0, 1 - words)], abs=1e-6)
    letters = edits(answered, reference) / len(reference)
    assert judge([answered], reference, unit="letter") == pytest.approx([max(0, 1 - letters)], abs=1e-6)
    theirs = float(word_error_rate([answered], [reference]))
    assert judge([answered], reference) == pytest.approx([max(0, 1 - theirs)], abs=1e-6), "torchmetrics"


def test_numbers_by_hand() -> None:
    texts = ["a b c d", "a x c d", "a b c d e", "a c d", "b a d c", "x y z", "", "a b c d " * 3]
    assert judge(texts, "a b c d") == pytest.approx([1, 0.75, 0.75, 0.75, 0.25, 0, 0, 0])
    assert judge(["cat", "cut", "at", "cats", "dog", "ca t"], "cat", unit="letter") == pytest.approx(
        [1, 2 / 3, 2 / 3, 2 / 3, 0, 2 / 3]
    )


def test_white_space_and_capitals() -> None:
    assert judge(["a\n  B", "a b"], " a\tB ") == [1, 0.5]
    assert judge(["A b"], "a B", ignore_case=True) == [1]
    assert judge(["a  \n b"], "a b", unit="letter") == [1]
    assert judge(["cafe\u0301"], "caf\u00e9", unit="letter") == [1]


def test_an_answer_of_more_wrong_words_than_there_are_gains_no_less_than_0() -> None:
    assert judge(["b c d", "b c a"], "a") == [0, 0]


def test_of_several_references_the_best_counts() -> None:
    assert judge(["a b", "a c", "x"], ["a b", "a b c"]) == pytest.approx([1, 2 / 3, 0])


@pytest.mark.parametrize("wrong", [{"unit": "character"}, {"tag": "a b"}], ids=str)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"unit must be one of word, letter|tags must be"):
        Wer(**wrong)
