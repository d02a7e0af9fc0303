"""ROUGE against rouge-score and numbers by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards.text.rouge import Rouge
from tests.rewards.example import answers
from tests.rewards.sentences import EXAMPLE as EXAMPLE

SENTENCES = st.lists(st.sampled_from(["the", "The", "cat", "Dog", "3.5", "it's", "on", "!", "..."]), max_size=12)


def judge(texts: list[str], answer: Any, **settings: Any) -> list[float]:
    found: list[float] = Rouge(**({"tag": None} | settings)).score(answers(texts, {"answer": answer})).tolist()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rouge1", "rouge2", "rougeL"])
@given(answered=SENTENCES.map(" ".join), reference=SENTENCES.map(lambda words: " ".join(["a", "b", *words])))
def test_rouge_score_agrees(kind: str, answered: str, reference: str) -> None:
    from rouge_score.rouge_scorer import RougeScorer  # takes a second to import

    expected = RougeScorer([kind]).score(reference, answered)[kind].fmeasure
    assert judge([answered], reference, kind=kind) == pytest.approx([expected], abs=1e-6)


def test_numbers_by_hand() -> None:
    truth, text = "the cat sat on the mat", "the cat the cat"
    assert judge([text], truth, kind="rouge1") == pytest.approx([2 * 3 / 10])  # the, the, cat
    assert judge([text], truth, kind="rouge2") == pytest.approx([2 * 1 / 8])  # the cat, once
    assert judge([text], truth) == pytest.approx([2 * 3 / 10])  # the cat ... the
    assert judge([text], truth, kind="mean") == pytest.approx([(0.6 + 0.25 + 0.6) / 3])
    assert judge(["mat the on sat cat the"], truth) == pytest.approx([2 * 3 / 12])  # backwards: the, sat, the


def test_of_several_references_the_best_counts() -> None:
    assert judge(["a cat", "a dog", "a b"], ["a cat", "one dog"]) == pytest.approx([1, 0.5, 0.5])


def test_repeating_and_adding_never_gain() -> None:
    once, twice, more = judge(["a cat", "a cat a cat", "a cat or a dog"], "a cat")
    assert once == 1 and twice == pytest.approx(2 * 2 / 6) and more == pytest.approx(2 * 2 / 7)


@pytest.mark.slow
def test_other_scripts_count() -> None:
    from rouge_score.rouge_scorer import RougeScorer

    assert judge(["猫が好き", "犬が好き", "кот"], "猫が好き", kind="rouge1") == pytest.approx([1, 0.75, 0])
    assert RougeScorer(["rouge1"]).score("猫が好き", "猫が好き")["rouge1"].fmeasure == 0, "what theirs does"


def test_a_reference_of_one_word_has_no_pairs() -> None:
    with pytest.raises(ValueError, match="rouge2 needs references of two words, got 'cat'"):
        judge(["cat"], "cat", kind="rouge2")
    assert judge(["cat", "a cat"], "cat", kind="mean") == pytest.approx([1, 2 / 3])


def test_a_target_without_words_is_an_error() -> None:
    with pytest.raises(ValueError, match="must have words"):
        judge(["a"], "!?")


@pytest.mark.parametrize("wrong", [{"kind": "rouge3"}, {"tag": "<answer>"}], ids=str)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"kind must be one of rouge1|tags must be"):
        Rouge(**wrong)
