"""ANLS against hand numbers and a slow table."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.rewards.base.references import MAX_LETTERS
from mmrl.rewards.text.anls import Anls
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown
from tests.rewards.tables import edits

TARGET = {"answer": ["12 March 1999", "march 12"]}


def random_batch(rng: random.Random) -> RewardBatch:
    texts = []
    for _ in range(8):
        letters = list("12 march 1999")
        for _ in range(rng.choice([0, 1, 4, 12])):
            letters[rng.randrange(len(letters))] = rng.choice("xyz ")
        texts.append(f"<answer>{''.join(letters)}</answer>")
    return answers(texts, TARGET)


EXAMPLE = Example(
    random_batch=random_batch,
    best=lambda: answers(["<answer>12  MARCH 1999</answer>", "<answer>March 12</answer>"] * 4, TARGET),
)


def judge(text: str, target: Any, **settings: Any) -> float:
    return float(Anls(**({"tag": None} | settings)).score(answers([text], {"answer": target})))


@in_one_test(
    ("text", "target", "score"),
    [
        ("coffee", "coffee", 1),
        ("  COFFEE\n", "coffee", 1),
        ("black  coffee", "black coffee", 1),
        ("cofee", "coffee", 1 - 1 / 6),
        ("coffees", "coffee", 1 - 1 / 7),
        ("toffae", "coffee", 1 - 2 / 6),
        ("cof", "coffee", 0),  # d = 0.5 is not below the threshold
        ("coff", "coffee", 1 - 2 / 6),
        ("tea", "coffee", 0),
        ("", "coffee", 0),
        ("coffee coffee", "coffee", 0),
        ("coffe", ["tea", "coffee", "coffee pot"], 1 - 1 / 6),
        ("Straße", "Strasse", 1 - 2 / 7),
        ("caf\u0065\u0301", "caf\u00e9", 1),  # one letter or two that look the same
    ],
)
def test_scores_by_hand(text: str, target: Any, score: float) -> None:
    assert judge(text, target) == pytest.approx(score)


def test_the_settings() -> None:
    assert judge("cof", "coffee", threshold=0.6) == pytest.approx(0.5)
    assert judge("tea", "coffee", threshold=1) == pytest.approx(1 - 5 / 6)
    assert judge("xyz", "coffee", threshold=1) == 0
    assert judge("<think>tea</think><answer>coffee</answer>", "coffee", tag="answer") == 1
    assert judge("<answer>coffee</answer><answer>coffee</answer>", "coffee", tag="answer") == 0
    for threshold in (0, -1, 1.1):
        with pytest.raises(ValueError, match="threshold must be above 0"):
            Anls(threshold=threshold)


@pytest.mark.slow
@given(st.text("abc ", max_size=12), st.text("abc", min_size=1, max_size=12), st.sampled_from([0.2, 0.5, 1.0]))
def test_it_is_one_less_the_distance_of_the_table(text: str, right: str, threshold: float) -> None:
    answer = " ".join(text.split())
    distance = edits(answer, right) / max(len(answer), len(right))
    expected = 1 - distance if distance < threshold else 0
    assert judge(text, right, threshold=threshold) == pytest.approx(expected)


@in_one_test("target", [3, None, "", [], ["red", 3], ["red", " "], "x" * (MAX_LETTERS + 1)])
def test_a_target_that_is_no_text_cannot_judge(target: Any) -> None:
    with pytest.raises(ValueError, match=r"target\.answer"):
        judge("red", target)
    with pytest.raises(ValueError, match=r"target\.answer"):
        Anls().check(answers([""], {"answer": target}).prompts[0])


@pytest.mark.slow
@given(TEXTS)
def test_any_text_has_a_score(text: str) -> None:
    for tag in (None, "answer"):
        check_scores(Anls(tag=tag, threshold=1.0), answers([text], TARGET))


@pytest.mark.timeout(60)
def test_hostile_texts_have_scores() -> None:
    check_scores(Anls(), answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_scores_0(piece: str) -> None:
    check_scores(Anls(), answers(megabytes(piece), TARGET))
    check_scores(
        Anls(tag=None), answers([(piece * 20_000)[:MAX_LETTERS]], {"answer": "word " * (MAX_LETTERS // 5)})
    )  # the longest that count
