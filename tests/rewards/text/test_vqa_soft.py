"""VQA accuracy against hand numbers and the mean over the subsets of nine."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.rewards.base.references import MAX_LETTERS
from mmrl.rewards.text.vqa_soft import VqaSoft, vqa_plain
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

PEOPLE = ["red"] * 5 + ["dark red"] * 3 + ["maroon", "Red."]
TARGET = {"answers": PEOPLE}


def random_batch(rng: random.Random) -> RewardBatch:
    said = rng.choices(["red", "the red", "dark red", "maroon", "blue", "", "red red"], k=8)
    return answers([f"<answer>{text}</answer>" for text in said], TARGET)


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: answers(["<answer>red</answer>", "<answer>A red!</answer>"] * 4, TARGET)
)


def judge(text: str, people: Any) -> float:
    return float(VqaSoft(tag=None).score(answers([text], {"answers": people})))


@in_one_test(
    ("text", "plain"),
    [
        ("Red", "red"),
        ("  a red\n car ", "red car"),
        ("The Two", "2"),
        ("none", "0"),
        ("ten", "10"),
        ("eleven", "eleven"),
        ("yes.", "yes"),
        ("3.5", "3.5"),
        ("3.", "3"),
        ("u.s.a", "usa"),
        ("1,000", "1000"),  # a comma between digits: all marks go
        ("1,000-ish", "1000ish"),
        ("red-blue", "red blue"),  # a mark without a space beside it becomes one
        ("red, blue", "red blue"),
        ("red,blue", "red blue"),
        ("red ,blue-green", "red blue green"),
        ("red, blue,green", "red bluegreen"),  # one with a space beside it goes everywhere
        ("red ,blue,green", "red bluegreen"),
        ("what?", "what"),
        ("dont", "don't"),
        ("couldnt've", "couldn't've"),
        ("couldn'tve", "couldn't've"),
        ("DON'T", "don't"),
        ("oclock", "o'clock"),
        ("yall'll", "y'all'll"),
        ("well", "well"),
        ("its", "its"),
        ("shed", "shed"),
        ("", ""),
        ("the", ""),
        ("?!", ""),
    ],
)
def test_the_plain_form_of_answers(text: str, plain: str) -> None:
    assert vqa_plain(text) == plain


@in_one_test(("agree", "score"), [(0, 0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1), (9, 1), (10, 1)])
def test_scores_of_ten_people_by_hand(agree: int, score: float) -> None:
    assert judge("Cat.", ["a cat"] * agree + ["dog"] * (10 - agree)) == pytest.approx(score)


@given(st.lists(st.sampled_from(["cat", "dog", "two", "2"]), min_size=4, max_size=12), st.sampled_from(["cat", "two"]))
def test_it_is_the_mean_over_all_subsets_that_leave_one_out(people: list[str], said: str) -> None:
    plain = [{"two": "2"}.get(one, one) for one in people]
    answer = {"two": "2"}.get(said, said)
    subsets = [plain[:place] + plain[place + 1 :] for place in range(len(plain))]
    expected = sum(min(1, subset.count(answer) / 3) for subset in subsets) / len(subsets)
    assert judge(said, people) == pytest.approx(expected)


def test_ten_who_agree_are_read_as_the_answer_is() -> None:
    """The official script compares "two" as it is with "2" where all ten wrote the same."""
    assert judge("two", ["two"] * 10) == judge("2", ["two"] * 10) == 1


def test_an_answer_of_which_nothing_is_left_agrees_with_nobody() -> None:
    assert judge("", ["the"] * 6 + ["cat"] * 4) == judge("the", ["a"] * 9 + ["cat"]) == 0


def test_several_answers_agree_with_nobody() -> None:
    assert judge("cat dog", ["cat"] * 5 + ["dog"] * 5) == 0
    batch = answers(["<answer>cat</answer>" * 2, "<answer>cat</answer>", "cat"], {"answers": ["cat"] * 10})
    assert VqaSoft().score(batch).tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="tags must be"):
        VqaSoft(tag="a b")


@in_one_test(
    "people",
    [
        *(None, "cat", [], ["cat"] * 3, ["cat"] * 4 + [1], {"cat": 4}, ["x" * (MAX_LETTERS + 1)] * 4),
        *([""] * 10, ["the"] * 10, ["a", "!", " ", "."]),  # nothing is left of them: every answer scores 0
    ],
)
def test_fewer_than_four_people_cannot_judge(people: Any) -> None:
    with pytest.raises(ValueError, match=r"target\.answers"):
        judge("cat", people)
    with pytest.raises(ValueError, match=r"target\.answers"):
        VqaSoft().check(answers([""], {"answers": people}).prompts[0])


@given(TEXTS)
def test_any_text_has_a_score(text: str) -> None:
    for tag in (None, "answer"):
        check_scores(VqaSoft(tag=tag), answers([text], TARGET))


@given(TEXTS)
def test_the_plain_form_has_no_capitals_marks_or_articles(text: str) -> None:
    plain = vqa_plain(text)
    assert plain == plain.lower() and not set(plain) & set(';/[]"{}()=+\\_-><@`,?!')
    assert not {"a", "an", "the"} & set(plain.split(" "))


@pytest.mark.timeout(60)
def test_hostile_texts_have_scores() -> None:
    check_scores(VqaSoft(), answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_scored(piece: str) -> None:
    check_scores(VqaSoft(), answers([*megabytes(piece), f"<answer>{(piece * 20_000)[:MAX_LETTERS]}</answer>"], TARGET))
