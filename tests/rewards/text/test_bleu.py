"""BLEU of sentences against sacrebleu and numbers by hand."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from mmrl.core.contracts import RewardBatch
from mmrl.rewards.base.references import MAX_LETTERS
from mmrl.rewards.text.bleu import Bleu, Smoothing, tokens_13a
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

TRUTH = "The quick brown fox jumps over the lazy dog."
TARGET = {"answer": TRUTH}
TOKENS = ["cat", "dog", "the", "The", "3.5", "1,000", ".", ",", "!", "2-3", "it's", "&amp;", "(y)", "10.", "-"]
SENTENCES = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=12).map(" ".join)


def draw(given: random.Random) -> RewardBatch:
    """The truth with more and more words of it replaced by others."""
    texts = []
    for row in range(8):
        words = [given.choice(["cat", "sun"]) if given.random() < row / 7 else word for word in TRUTH.split()]
        texts.append(f"<answer>{' '.join(words)}</answer>")
    return answers(texts, TARGET)


EXAMPLE = Example(draw=draw, best=lambda: answers([f"<think>so</think><answer>{TRUTH}</answer>"] * 4, TARGET))


def judge(texts: list[str], answer: Any, **settings: Any) -> list[float]:
    found: list[float] = Bleu(**({"tag": None} | settings)).score(answers(texts, {"answer": answer})).tolist()
    return found


@pytest.mark.parametrize(("ours", "theirs"), [("exp", "exp"), ("floor", "floor"), ("add_k", "add-k"), ("none", "none")])
@given(answered=SENTENCES, references=st.lists(SENTENCES, min_size=1, max_size=3))
def test_sacrebleu_agrees(ours: Smoothing, theirs: str, answered: str, references: list[str]) -> None:
    for order in (1, 4):
        metric = BLEU(smooth_method=theirs, effective_order=True, max_ngram_order=order)
        expected = metric.sentence_score(answered, references).score / 100
        found = judge([answered], references, smoothing=ours, max_order=order)
        assert found == pytest.approx([expected], abs=1e-6)


@given(st.lists(st.sampled_from([*TOKENS, "<skipped>", "-\n", "&quot;", "é", "a.b", "5.a"]), max_size=8).map("".join))
def test_tokens_are_those_of_mteval(text: str) -> None:
    tokenise: Any = Tokenizer13a  # it has no annotations
    assert tokens_13a(text) == tokenise()(text).split()


def test_numbers_by_hand() -> None:
    truth = "the cat sat on the mat"
    # 4 of 4, 2 of 3 (on the is not there), 1 of 2, 0 of 1: half of 1; two tokens too short
    expected = math.exp(1 - 6 / 4) * (1 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25
    assert judge(["the cat sat mat"], truth) == pytest.approx([expected])
    assert judge(["the cat sat mat"], truth, smoothing="none") == [0]
    assert judge(["the the the the the the"], truth, max_order=1) == pytest.approx([2 / 6])
    assert judge(["THE CAT"], "the cat", ignore_case=True) == [1]
    assert judge(["a", "cat", ""], "cat") == [0, 1, 0]


def test_the_reference_of_the_nearest_length_says_what_is_short() -> None:
    assert judge(["a b c"], ["a b c d", "a b"], max_order=1) == [1]  # both are one off: the shorter one
    assert judge(["a b c"], ["a b c d", "x"], max_order=1) == pytest.approx([math.exp(-1 / 3)])


def test_repeating_and_adding_never_gain() -> None:
    once, twice, more = judge(["a red cat", "a red cat a red cat", "a red cat or a dog"], "a red cat")
    assert once == 1 and twice < 0.5 and more < 0.6


def test_the_answer_stands_in_its_one_tag() -> None:
    texts = ["<answer>cat</answer>", "cat", "<answer>cat</answer><answer>cat</answer>", "<answer></answer>"]
    assert judge(texts, "cat", tag="answer") == [1, 0, 0, 0]


def test_a_target_without_tokens_is_an_error() -> None:
    with pytest.raises(ValueError, match="must have words"):
        judge(["a"], "<skipped>")


@pytest.mark.parametrize("wrong", [{"smoothing": "exponential"}, {"max_order": 0}, {"max_order": 10}], ids=str)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Bleu(**wrong)


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_any_text_has_a_score(texts: list[str]) -> None:
    check_scores(Bleu(smoothing="floor"), answers(texts, TARGET))
    check_scores(Bleu(smoothing="floor", tag=None), answers(texts, TARGET))


def test_hostile_texts_have_scores() -> None:
    check_scores(Bleu(), answers(HOSTILE, TARGET))
    check_scores(Bleu(tag=None), answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_has_a_score(piece: str) -> None:
    check_scores(Bleu(), answers(megabytes(piece), TARGET))
    check_scores(Bleu(tag=None), answers([piece * (MAX_LETTERS // len(piece))], TARGET))
