"""Token F1 against hand numbers and a slow loop."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.rewards.base.references import MAX_LETTERS
from mmrl.rewards.text.text_f1 import TextF1, squad_words
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

TARGET = {"answer": "the red house by the sea"}


def random_batch(rng: random.Random) -> RewardBatch:
    words = ["red", "house", "by", "sea", "blue", "no", "the"]
    texts = [" ".join(rng.choices(words, k=rng.randint(0, 6))) for _ in range(7)]
    return answers([f"<answer>{text}</answer>" for text in [*texts, "Red house by the sea."]], TARGET)


EXAMPLE = Example(random_batch=random_batch, best=lambda: answers(["<answer>Red house, by sea</answer>"] * 8, TARGET))


def judge(text: str, target: Any) -> float:
    return float(TextF1(tag=None).score(answers([text], {"answer": target})))


@in_one_test(
    ("text", "target", "score"),
    [
        ("red house", "red house", 1),
        ("The RED house!", "a red house", 1),
        ("house red", "red house", 1),
        ("red", "red house", 2 / 3),  # p 1, r 1/2
        ("red house by the sea", "red house", 2 / 3),  # p 2/4, r 1
        ("red red red red", "red house", 2 / 6),  # one shared; p 1/4, r 1/2
        ("red red", "red red house", 4 / 5),
        ("blue", "red house", 0),
        ("", "red", 0),
        ("the", "red", 0),
        ("U.S.", "US", 1),
        ("don't", "dont", 1),
        ("anthem", "them", 0),  # articles are whole words
        ("pizza", "pizz", 0),
        ("red", ["blue", "red house", "red car by sea"], 2 / 3),
        ("日本", "日本", 1),
    ],
)
def test_scores_by_hand(text: str, target: Any, score: float) -> None:
    assert judge(text, target) == pytest.approx(score)


def slow(text: str, right: str) -> float:
    """Shared words taken away one by one."""
    said = [word for word in text.split() if word not in ("a", "an", "the")]
    left = [word for word in right.split() if word not in ("a", "an", "the")]
    number, shared = len(left), 0
    for word in said:
        if word in left:
            left.remove(word)
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(said), shared / number
    return 2 * precision * recall / (precision + recall)


SENTENCES = st.lists(st.sampled_from(["the", "a", "red", "cat", "cats", "an", "of"]), max_size=8).map(" ".join)


@given(SENTENCES, SENTENCES.map(lambda text: f"red {text}"))
def test_it_is_what_a_slow_loop_counts(text: str, right: str) -> None:
    assert judge(text, right) == pytest.approx(slow(text, right))


def test_words_are_those_of_squad() -> None:
    assert squad_words("The a-b, an  A.B\n(c) \u201cd\u201d") == {"ab": 2, "c": 1, "\u201cd\u201d": 1}


def test_the_tag() -> None:
    reward, batch = TextF1(), answers(["<answer>red</answer>", "red", "<answer>red</answer>" * 2], {"answer": "red"})
    assert reward.score(batch).tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match="tags must be"):
        TextF1(tag="a b")


@in_one_test("target", [3, None, "", [], ["red", 3], "the", "!?", ["red", "an"]])
def test_a_target_without_words_cannot_judge(target: Any) -> None:
    with pytest.raises(ValueError, match=r"target\.answer must (be a text|have words)"):
        judge("red", target)
    with pytest.raises(ValueError, match=r"target\.answer must"):
        TextF1().check(answers([""], {"answer": target}).prompts[0])


@given(TEXTS)
def test_any_text_has_a_score(text: str) -> None:
    for tag in (None, "answer"):
        check_scores(TextF1(tag=tag), answers([text], TARGET))


@pytest.mark.timeout(60)
def test_hostile_texts_have_scores() -> None:
    check_scores(TextF1(), answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_scored(piece: str) -> None:
    check_scores(TextF1(), answers([*megabytes(piece), f"<answer>{(piece * 20_000)[:MAX_LETTERS]}</answer>"], TARGET))
