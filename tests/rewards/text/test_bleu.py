"""BLEU of sentences against a slow loop, torchmetrics and numbers by hand."""

import math
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp

from mmrl.rewards.text.bleu import Bleu, Smoothing
from tests.parameters import in_one_test
from tests.rewards.example import answers
from tests.rewards.sentences import EXAMPLE as EXAMPLE

TOKENS = ["cat", "dog", "the", "The", "3.5", "1,000", ".", ",", "!", "2-3", "it's", "&amp;", "(y)", "10.", "-"]
SENTENCES = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=12).map(" ".join)


def judge(texts: list[str], answer: Any, **settings: Any) -> list[float]:
    found: list[float] = Bleu(**({"tag": None} | settings)).score(answers(texts, {"answer": answer})).tolist()
    return found


def slowly(answered: list[str], references: list[list[str]], smoothing: Smoothing, max_order: int) -> float:
    """The formula, with every run of words looked for in every reference."""

    def runs(words: list[str], n: int) -> list[tuple[str, ...]]:
        return [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]

    logs, misses = [], 0
    for n in range(1, max_order + 1):
        own = runs(answered, n)
        found = sum(min(own.count(run), max(runs(one, n).count(run) for one in references)) for run in set(own))
        total = len(own)
        if n == 1 and not found:
            return 0
        if smoothing == "add_k" and n > 1:
            found, total = found + 1, total + 1
        if not total:
            break
        if not found and smoothing == "none":
            return 0
        misses += not found
        logs.append(math.log((found or {"exp": 0.5**misses, "floor": 0.1}[smoothing]) / total))
    nearest = min((abs(len(one) - len(answered)), len(one)) for one in references)[1]
    return math.exp(sum(logs) / len(logs) + min(0, 1 - nearest / len(answered)))


WORDS = st.lists(st.sampled_from(["cat", "dog", "the", "The", "sat", "on"]), min_size=1, max_size=9)


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", get_args(Smoothing))
@given(answered=WORDS, references=st.lists(WORDS, min_size=1, max_size=3))
def test_a_slow_loop_agrees(smoothing: Smoothing, answered: list[str], references: list[list[str]]) -> None:
    for order in (1, 4):
        found = judge([" ".join(answered)], list(map(" ".join, references)), smoothing=smoothing, max_order=order)
        assert found == pytest.approx([slowly(answered, references, smoothing, order)], abs=1e-6)


@pytest.mark.slow
@given(st.lists(st.sampled_from(TOKENS), min_size=4, max_size=12), SENTENCES)
def test_torchmetrics_agrees(answered: list[str], reference: str) -> None:
    """Of texts with signs too; theirs gives 0 to answers of fewer than four tokens, and knows no smoothing of zeros."""
    from torchmetrics.functional.text import sacre_bleu_score  # takes seconds to import

    expected = float(sacre_bleu_score([" ".join(answered)], [[reference]]))
    assert judge([" ".join(answered)], reference, smoothing="none") == pytest.approx([expected], abs=1e-6)


@in_one_test(
    ("text", "tokens"),
    [
        ("It's 3.5, or 1,000!", "It's 3.5 , or 1,000 !"),
        ("a.b 5.a 10. 2-3 a-b", "a . b 5 . a 10 . 2 - 3 a-b"),
        ("&amp;&quot;x&lt;", '& " x <'),
        ("hy-\nphen <skipped>é", "hyphen é"),
        ("(y)/[z]", "( y ) / [ z ]"),
    ],
)
def test_tokens_are_those_of_mteval(text: str, tokens: str) -> None:
    """By hand, from the rules of mteval-v13a: one token too many would lower the precision of the answer."""
    assert judge([text], tokens, smoothing="none", max_order=1) == [1]
    assert len(Bleu()._bleu.tokenizer(text).split()) == len(tokens.split())


def test_sacrebleu_keeps_no_texts() -> None:
    judge(["a text that nobody asks for again"], "another")
    assert Tokenizer13a.__call__.cache_info().currsize == 0
    assert TokenizerRegexp.__call__.cache_info().currsize == 0


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


def test_a_target_without_tokens_is_an_error() -> None:
    with pytest.raises(ValueError, match="must have words"):
        judge(["a"], "<skipped>")


@pytest.mark.parametrize("wrong", [{"smoothing": "exponential"}, {"max_order": 0}, {"max_order": 10}], ids=str)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Bleu(**wrong)
