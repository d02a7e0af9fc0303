"""The right option in all its spellings, and the spellings that are no choice."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.rewards.base.choices import _plain, read_choices
from mmrl.rewards.base.references import MAX_LETTERS
from mmrl.rewards.text.multiple_choice import MultipleChoice
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

OPTIONS = ("a dog", "cat", "A and C", "B")
TARGET = {"answer": "B"}


def random_batch(rng: random.Random) -> RewardBatch:
    spellings = ["B", "(B)", "b.", "B. cat", "A", "C", "A, B", "D) dog", "cat", "", "I do not know", "<answer>"]
    return answers([f"<answer>{rng.choice(spellings)}</answer>" for _ in range(8)], TARGET)


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: answers(["<answer>B</answer>", "<answer>(b)</answer>"] * 4, TARGET)
)


def judge(text: str, target: Any, options: Any = None, **settings: Any) -> float:
    batch = answers([text], {"answer": target} | ({"options": options} if options is not None else {}))
    return float(MultipleChoice(**({"tag": None} | settings)).score(batch))


@in_one_test(
    "text",
    [
        *("B", " B\n", "(B)", "[B]", "B.", "B)", "B:", "b", "(b)", "b.", "B. cat", "B) cat", "B: a cat", "(B) cat"),
        *("Answer: B", "answer is B", "The answer is B", "The answer is: (B)", "The correct option is B.", "option B"),
        *("B. A cat", "(B) I think so", "B.cat"),
    ],
)
def test_spellings_of_one_letter(text: str) -> None:
    assert judge(text, "B") == 1
    assert judge(text, "A") == 0
    assert judge(f"<think>A</think><answer>{text}</answer>", "(B)", tag="answer") == 1


@in_one_test(
    "text",
    [
        *(
            "",
            "cat",
            "B cat",
            "Because it is B",
            "not B",
            "B or A",
            "B. A. C.",
            "B. or (A)",
            "B. cat C. dog",
            "A, B",
            "AB",
        ),
        *("\u0412", "\uff22", "B\u200b", "B\u0301", "1", "BB", "(B", "B?", "-B", "\\boxed{B}", "A B", "A/B", "(A)(B)"),
    ],
)
def test_what_does_not_name_b_alone_is_wrong(text: str) -> None:
    assert judge(text, "B") == 0


@in_one_test(
    ("text", "letter"),
    [
        *(
            ("a dog", "A"),
            ("A dog.", "A"),
            ("A. a dog", "A"),
            ("CAT", "B"),
            ("(b) Cat", "B"),
            ("The answer is cat", "B"),
        ),
        *(("a and c", "C"), ("A and C", "C"), ("C. A and C", "C"), ("B", "B"), ("D. B", "D"), ("d", "D")),
        *(("B. a dog", None), ("E", None), ("A, E", None), ("dog", None), ("A dog cat", None)),
    ],
)
def test_with_options_the_text_counts_too(text: str, letter: str | None) -> None:
    marked = [f"{mark}. {option}" for mark, option in zip("ABCD", OPTIONS, strict=True)]
    for options in (OPTIONS, marked, dict(zip("ABCD", OPTIONS, strict=True))):
        for right in "ABCD":
            assert judge(text, right, options) == (right == letter)


@pytest.mark.parametrize("option", ["caf\u00e9", "cafe\u0301"], ids=["composed", "decomposed"])
def test_an_accent_and_its_letter_are_the_letter_with_the_accent(option: str) -> None:
    """Answers are composed; options that are not would never be what an answer says."""
    for said in ("caf\u00e9", "cafe\u0301", "B. caf\u00e9", "B. Cafe\u0301."):
        assert judge(said, "B", ["tea", option]) == judge(said, "Cafe\u0301", ["tea", option]) == 1
    assert judge("cafe", "B", ["tea", option]) == 0


def test_options_that_say_the_same_are_told_apart_by_their_letters_alone() -> None:
    options = ["cat", "Cat.", "dog"]
    assert [judge(text, "A", options) for text in ("cat", "A", "A. cat", "B. cat")] == [0, 1, 1, 0]
    with pytest.raises(ValueError, match="several options say 'cat'"):
        judge("A", "cat", options)


@in_one_test(
    ("text", "exact", "soft"),
    [
        *(("A, C", 1, 1), ("C, A", 1, 1), ("A and C", 1, 1), ("(A), (C)", 1, 1), ("AC", 1, 1), ("A C", 1, 1)),
        *(("A; C.", 1, 1), ("A, and C", 1, 1), ("The answers are A & C", 1, 1), ("A/C", 1, 1)),
        *(("A", 0, 0.5), ("c.", 0, 0.5), ("A, A", 0, 0.5), ("A, A, A", 0, 0.5)),
        *(("A, B", 0, 0), ("A, B, C", 0, 0), ("ABCD", 0, 0), ("B", 0, 0), ("", 0, 0), ("AAC", 0, 0), ("A, cat", 0, 0)),
    ],
)
def test_several_right_letters_by_hand(text: str, exact: float, soft: float) -> None:
    for target in ("A, C", ["A", "C"], "C and A", ["(C)", "A."]):
        assert judge(text, target) == exact
        assert judge(text, target, is_soft=True) == soft


@pytest.mark.slow
@given(st.sets(st.sampled_from("ABCDEF"), min_size=1), st.sets(st.sampled_from("ABCDEF"), min_size=1))
def test_soft_scores_are_those_of_sets(said: set[str], right: set[str]) -> None:
    """TW-GRPO's definition, on sets."""
    expected = len(said & right) / len(right) if not said - right else 0.0
    assert judge(", ".join(sorted(said)), sorted(right), is_soft=True) == pytest.approx(expected)
    assert judge(" and ".join(sorted(said)), sorted(right)) == float(said == right)


@given(TEXTS)
def test_every_choice_that_is_read_is_one_of_the_letters(text: str) -> None:
    for options in ((), tuple(map(_plain, OPTIONS))):
        try:
            named = read_choices(text, options)
        except ValueError:
            continue
        assert named and named <= set("ABCD" if options else "ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def test_the_box_and_the_tag() -> None:
    assert judge(r"so \boxed{B}", "B", boxed=True) == 1
    assert judge(r"<answer>\boxed{B. cat}</answer>", "B", tag="answer", boxed=True) == 1
    assert judge(r"\boxed{A} \boxed{B}", "B", boxed=True) == 0
    assert judge("<answer>B</answer><answer>B</answer>", "B", tag="answer") == 0
    with pytest.raises(ValueError, match="tags must be"):
        MultipleChoice(tag="<answer>")


@in_one_test(
    ("target", "options", "message"),
    [
        *((target, None, "target.answer must be letters") for target in ("", "cat", None, 2, [], ["B", 1], "B or A")),
        ("E", OPTIONS, "E is none of the options A to D"),
        ("B. dog", OPTIONS, "the option B does not say 'dog'"),
        *(
            ("A", options, "target.options must be 2 to 26 texts")
            for options in (["a"], "ab", [1, 2], ["a", ""], ["x"] * 27)
        ),
        ("A", {"B": "x", "A": "y"}, "target.options must be 2 to 26 texts"),
    ],
)
def test_a_target_that_names_no_option_cannot_judge(target: Any, options: Any, message: str) -> None:
    batch = answers(["<answer>B</answer>"], {"answer": target} | ({} if options is None else {"options": options}))
    for ask in (lambda: MultipleChoice().score(batch), lambda: MultipleChoice().check(batch.prompts[0])):
        with pytest.raises(ValueError, match=message):
            ask()


@given(TEXTS)
def test_any_text_has_a_score(text: str) -> None:
    check_scores(MultipleChoice(tag=None, is_soft=True), answers([text], TARGET | {"options": OPTIONS}))


@pytest.mark.timeout(60)
def test_hostile_texts_have_scores() -> None:
    for tag in (None, "answer"):
        check_scores(MultipleChoice(tag=tag), answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_no_choice(piece: str) -> None:
    for tag in (None, "answer"):
        check_scores(MultipleChoice(tag=tag), answers(megabytes(piece), TARGET | {"options": OPTIONS}))
    text = (piece * 20_000)[: MAX_LETTERS - 100]  # as long as answers may be
    check_scores(MultipleChoice(tag=None), answers([text, f"B. {text}", f"The answer is {text}"], TARGET))
