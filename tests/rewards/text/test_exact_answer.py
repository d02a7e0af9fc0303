"""Answers that are right, and those that only look it."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.parsing.answers import ParseError
from mmrl.rewards.text.exact_answer import ExactAnswer
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

Make = Callable[..., RewardBatch]
TARGET = {"answer": ["dark red", "maroon"]}


def random_batch(rng: random.Random) -> RewardBatch:
    said = ["Dark  red", "maroon", "red", "dark red or maroon", "", "<answer>maroon"]
    return answers([f"<answer>{rng.choice(said)}</answer>" for _ in range(8)], TARGET)


EXAMPLE = Example(
    random_batch=random_batch,
    best=lambda: answers(["<answer>maroon</answer>", "<answer>Dark red</answer>"] * 4, TARGET),
)


def judge(text: str, target: Any, make_batch: Make, **settings: Any) -> float:
    batch = make_batch(Outputs(texts=(text,)), ["question"], [{"answer": target}])
    return float(ExactAnswer(**settings).score(batch))


@in_one_test(
    ("text", "target", "score"),
    [
        ("<answer>red</answer>", "red", 1),
        ("<think>blue?</think>\n<answer>\n  Red </answer> or so", "red", 1),
        ("<answer>dark   red\ncar</answer>", "Dark red car", 1),
        ("<answer>STRASSE</answer>", "Straße", 1),
        ("<answer>blue</answer>", ["red", "blue"], 1),
        ("<answer>cafe\u0301</answer>", "Caf\u00e9", 1),
        ("<answer>caf\u00e9</answer>", ["tea", "cafe\u0301"], 1),
        ("<answer>cafe</answer>", "caf\u00e9", 0),
        (f"<answer>e{31 * chr(0x301)}</answer>", "e", 0),
        ("<answer>3</answer>", "3.0", 0),
        ("<answer>redd</answer>", "red", 0),
        ("<answer>red or blue</answer>", ["red", "blue"], 0),
        ("<answer></answer>", "red", 0),
        ("<answer>red</answer><answer>red</answer>", "red", 0),
        ("red", "red", 0),
        ("", "red", 0),
    ],
)
def test_right_and_wrong(text: str, target: Any, score: float, make_batch: Make) -> None:
    assert judge(text, target, make_batch) == score


def test_the_settings(make_batch: Make) -> None:
    assert judge(" red ", "red", make_batch, tag=None) == 1
    assert judge("<answer>Red</answer>", "red", make_batch, ignore_case=False) == 0
    assert judge("<result>red</result>", "red", make_batch, tag="result") == 1
    with pytest.raises(ValueError, match="tags must be"):
        ExactAnswer(tag="<answer>")


@in_one_test(
    ("text", "target", "score"),
    [
        (r"<think>maybe \boxed{4}</think> so \boxed{3}.", "3", 1),
        (r"it is \boxed{ \frac{1}{2}\sqrt{3} }", r"\frac{1}{2}\sqrt{3}", 1),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}", 1),
        (r"\boxed{3} or \boxed{4}", ["3", "4"], 0),
        (r"<think>\boxed{3}</think> I do not know", "3", 0),
        (r"\boxed{3", "3", 0),
        (r"\boxed{\{3}", "3", 0),
        (r"\boxed {3}", "3", 0),
        (r"\boxed{}", "3", 0),
        ("3", "3", 0),
    ],
)
def test_an_answer_in_a_box(text: str, target: Any, score: float, make_batch: Make) -> None:
    assert judge(text, target, make_batch, tag=None, boxed=True) == score
    assert judge(f"<answer>{text}</answer>", target, make_batch, boxed=True) == score


@in_one_test("target", [3, None, "", " ", [], ["red", 3], ["red", ""], {"red": 1}])
def test_a_target_that_is_no_text_cannot_judge(target: Any, make_batch: Make) -> None:
    with pytest.raises(ValueError, match=r"target\.answer must be a text or a list of texts, got .* for 'question'"):
        judge("<answer>red</answer>", target, make_batch)
    with pytest.raises(ValueError, match=r"target\.answer must be a text or a list of texts"):
        ExactAnswer().check(answers([""], {"answer": target}).prompts[0])


@given(TEXTS)
def test_any_text_has_a_score_and_is_right_only_where_it_is_the_answer(text: str) -> None:
    for tag, boxed in ((None, False), ("answer", False), (None, True)):
        check_scores(ExactAnswer(tag=tag, boxed=boxed), answers([text], TARGET))
    if "red" not in text.casefold():
        assert ExactAnswer(tag=None).score(answers([text], {"answer": "red"})).tolist() == [0]


@pytest.mark.timeout(60)
def test_hostile_texts_have_scores() -> None:
    for boxed in (False, True):
        check_scores(ExactAnswer(boxed=boxed), answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_wrong(piece: str) -> None:
    for boxed in (False, True):
        assert check_scores(ExactAnswer(boxed=boxed), answers(megabytes(piece), TARGET)).tolist() == [0, 0, 0]


def test_a_target_of_endless_accents_cannot_judge(make_batch: Make) -> None:
    with pytest.raises(
        ValueError, match=r"target\.answer of 'question' cannot be compared with: .* 30 accents"
    ) as error:
        judge("<answer>red</answer>", "e" + 31 * "\u0301", make_batch)
    assert not isinstance(error.value, ParseError), "nobody takes it for a wrong answer"
