"""Word and letter error rates against jiwer and numbers by hand."""

import random
from typing import Any

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.rewards.base.references import MAX_LETTERS
from mmrl.rewards.text.wer import Wer
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

TRUTH = "the quick brown fox jumps over the lazy dog"
TARGET = {"answer": TRUTH}
SENTENCES = st.lists(st.sampled_from(["the", "The", "cat", "dog.", "é", "ab"]), min_size=1, max_size=9).map(" ".join)


def draw(given: random.Random) -> RewardBatch:
    """The truth with more and more words of it replaced by others."""
    texts = []
    for row in range(8):
        words = [given.choice(["cat", "sun"]) if given.random() < row / 7 else word for word in TRUTH.split()]
        texts.append(f"<answer>{' '.join(words)}</answer>")
    return answers(texts, TARGET)


EXAMPLE = Example(draw=draw, best=lambda: answers([f"<think>so</think><answer>{TRUTH}</answer>"] * 4, TARGET))


def judge(texts: list[str], answer: Any, **settings: Any) -> list[float]:
    found: list[float] = Wer(**({"tag": None} | settings)).score(answers(texts, {"answer": answer})).tolist()
    return found


@given(answered=SENTENCES, reference=SENTENCES)
def test_jiwer_agrees(answered: str, reference: str) -> None:
    assert judge([answered], reference) == pytest.approx([max(0, 1 - jiwer.wer(reference, answered))], abs=1e-6)
    found = judge([answered], reference, unit="letter")
    assert found == pytest.approx([max(0, 1 - jiwer.cer(reference, answered))], abs=1e-6)


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
    assert jiwer.wer("a", "b c d") == 3
    assert judge(["b c d", "b c a"], "a") == [0, 0]


def test_of_several_references_the_best_counts() -> None:
    assert judge(["a b", "a c", "x"], ["a b", "a b c"]) == pytest.approx([1, 2 / 3, 0])


def test_the_answer_stands_in_its_one_tag() -> None:
    texts = ["<answer>cat</answer>", "cat", "<answer>cat</answer><answer>cat</answer>", "<answer></answer>"]
    assert judge(texts, "cat", tag="answer") == [1, 0, 0, 0]


@pytest.mark.parametrize("wrong", [{"unit": "character"}, {"tag": "a b"}], ids=str)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"unit must be one of word, letter|tags must be"):
        Wer(**wrong)


def test_a_target_that_is_no_text_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"target\.answer must be a text"):
        judge(["a"], 3)


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_any_text_has_a_score(texts: list[str]) -> None:
    check_scores(Wer(unit="letter"), answers(texts, TARGET))
    check_scores(Wer(unit="letter", tag=None), answers(texts, TARGET))


def test_hostile_texts_have_scores() -> None:
    check_scores(Wer(), answers(HOSTILE, TARGET))
    check_scores(Wer(tag=None), answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_has_a_score(piece: str) -> None:
    check_scores(Wer(), answers(megabytes(piece), TARGET))
    check_scores(Wer(tag=None), answers([piece * (MAX_LETTERS // len(piece))], TARGET))
