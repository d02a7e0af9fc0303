"""The penalty for repetition against hand numbers and a slow loop."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.parsing.answers import MAX_CHARACTERS
from mmrl.rewards.text.repetition import Repetition
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown


def random_batch(rng: random.Random) -> RewardBatch:
    return answers([" ".join(rng.choices("abcdefgh"[: rng.randint(1, 8)], k=rng.randint(0, 100))) for _ in range(8)])


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: answers(["", "one", "one two", "one two three four", "a b a b"] * 2)
)


def judge(text: str, **settings: Any) -> float:
    return float(Repetition(**settings).score(answers([text])))


@in_one_test(
    ("text", "score"),
    [
        ("", 0),
        ("a a", 0),  # no three words
        ("a a a", 0),  # one 3-gram
        ("a a a a", -1 / 2),
        ("a b c d e", 0),
        ("a b c a b c", -1 / 4),  # abc bca cab abc
        ("A b\nC a  B c", -1 / 4),
        ("a " * 102, -99 / 100),
        ("a, b c a b c", 0),  # a comma makes another word, as in open-r1
        ("a\u200b b c a b\u200d c", -1 / 4),  # what cannot be seen does not
        ("a\ufe0f b c a\ufe0e b\u034f c\U000e0101", -1 / 4),
        ("a\u3164 b c\x00 a\x7f b c\u2800", -1 / 4),
        ("a\x85b\x1cc a b\u2028c", -1 / 4),  # these are white space
        ("\u200b" * 50, 0),
    ],
)
def test_scores_of_words_by_hand(text: str, score: float) -> None:
    assert judge(text) == pytest.approx(score)


def test_no_penalty_is_plus_0() -> None:
    assert str(judge("a b c d")) == "0.0"


def test_the_settings() -> None:
    assert judge("a b a b", size=2) == pytest.approx(-1 / 3)
    assert judge("a a b", size=1) == pytest.approx(-1 / 3)
    assert judge("哈哈哈哈") == 0
    assert judge("哈哈 哈哈", unit="letter") == pytest.approx(-1 / 2)
    for settings, message in (
        ({"size": 0}, "size must be"),
        ({"size": 101}, "size"),
        ({"unit": "token"}, "unit must be"),
    ):
        with pytest.raises(ValueError, match=message):
            Repetition(**settings)


@given(st.lists(st.sampled_from("ab"), max_size=30), st.integers(1, 4))
def test_it_is_what_a_slow_loop_counts(words: list[str], size: int) -> None:
    grams = [words[start : start + size] for start in range(len(words) - size + 1)]
    repeated = sum(grams[place] in grams[:place] for place in range(len(grams)))
    expected = -repeated / len(grams) if grams else 0
    assert judge(" ".join(words), size=size) == pytest.approx(expected)
    assert judge("".join(words), size=size, unit="letter") == pytest.approx(expected)


def test_saying_it_once_more_is_never_better() -> None:
    text = "the cat sat on the mat "
    scores = [judge(text * times) for times in range(1, 20)]
    assert scores == sorted(scores, reverse=True) and scores[-1] < scores[0]


def test_the_beginning_of_a_longer_text_counts() -> None:
    assert judge("a" * MAX_CHARACTERS + " b b b b") == 0


@given(TEXTS)
def test_any_text_has_a_score(text: str) -> None:
    for unit in ("word", "letter"):
        check_scores(Repetition(unit=unit), answers([text]))


@pytest.mark.timeout(60)
def test_hostile_texts_have_scores() -> None:
    check_scores(Repetition(), answers(HOSTILE))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_scored(piece: str) -> None:
    check_scores(Repetition(), answers(megabytes(piece)[:1]))
    check_scores(Repetition(unit="letter", size=100), answers([piece * (30_000 // len(piece))]))
