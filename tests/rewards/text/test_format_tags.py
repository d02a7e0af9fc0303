"""The format reward on the texts that models write to get around it."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.parsing.answers import ParseError, extract
from mmrl.rewards.text.format_tags import FormatTags
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

Make = Callable[..., RewardBatch]
VERDICTS: list[tuple[str, float, float]] = [  # text, strict score, graded score: thirds of think, answer, whole
    ("<think>a</think><answer>5</answer>", 1, 1),
    ("<think>a</think>\n<answer>5</answer>", 1, 1),
    ("  <think>\na\n</think>\r\n\r\n<answer> 5 </answer>\n", 1, 1),
    ("<think>a <b>bold</b> 1 < 2</think><answer>{}</answer>", 1, 1),
    ("<think>```\ncode\n```</think><answer>5</answer>", 1, 1),
    ("", 0, 0),
    ("5", 0, 0),
    ("<answer>5</answer>", 0, 1 / 3),
    ("<think>a</think>", 0, 1 / 3),
    ("<think>a</think>5", 0, 1 / 3),
    ("<think></think><answer>5</answer>", 0, 1 / 3),
    ("<think>a</think><answer></answer>", 0, 1 / 3),
    ("<think> \n</think><answer>\t</answer>", 0, 0),
    ("<answer>5</answer><think>a</think>", 0, 2 / 3),
    ("x <think>a</think><answer>5</answer>", 0, 2 / 3),
    ("<think>a</think> so <answer>5</answer>", 0, 2 / 3),
    ("<think>a</think><answer>5</answer> x", 0, 2 / 3),
    ("```\n<think>a</think><answer>5</answer>\n```", 0, 2 / 3),
    ("<think>a<answer>5</answer></think>", 0, 2 / 3),
    ("<think>a<answer>5</think></answer>", 0, 2 / 3),
    ("<answer><think>a</think>5</answer>", 0, 2 / 3),
    ("<think>a</think><answer>5</answer><answer>6</answer>", 0, 1 / 3),
    ("<think>a</think><answer>5</answer> junk <answer>2</answer>", 0, 1 / 3),
    ("<think>a</think><answer><answer>5</answer></answer>", 0, 1 / 3),
    ("<think>a</think><think>b</think><answer>5</answer>", 0, 1 / 3),
    ("<think>in <answer> tags</think><answer>5</answer>", 0, 1 / 3),
    ("<think>a<answer>5</answer>", 0, 1 / 3),
    ("<think>a</think><answer>5", 0, 1 / 3),
    ("<think>a</think>5</answer>", 0, 1 / 3),
    ("</think>a<think></answer>5<answer>", 0, 0),
    ("<THINK>a</THINK><Answer>5</Answer>", 0, 0),
    ("<think >a</think ><answer >5</answer >", 0, 0),
    ("&lt;think&gt;a&lt;/think&gt;<answer>5</answer>", 0, 1 / 3),
]

GOOD = "<think>a</think><answer>5</answer>"


def random_batch(rng: random.Random) -> RewardBatch:
    return answers([rng.choice([GOOD, f" {GOOD}\n", *(text for text, _, _ in VERDICTS)]) for _ in range(8)])


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: answers([text for text, strict, _ in VERDICTS if strict] + [GOOD] * 3)
)


def score(reward: FormatTags, texts: list[str], make_batch: Make) -> list[float]:
    result: list[float] = reward.score(make_batch(Outputs(texts=tuple(texts)), texts)).tolist()
    return result


def test_the_table_of_verdicts(make_batch: Make) -> None:
    texts = [text for text, _, _ in VERDICTS]
    assert score(FormatTags(), texts, make_batch) == [strict for _, strict, _ in VERDICTS]
    graded = score(FormatTags(is_graded=True), texts, make_batch)
    assert dict(zip(texts, graded, strict=True)) == pytest.approx({text: value for text, _, value in VERDICTS})


def test_what_has_the_format_can_be_read_and_what_answers_twice_cannot() -> None:
    for text, strict, _ in VERDICTS:
        if strict:
            assert extract(text, "answer").strip() and extract(text, "think").strip()
        if text.count("<answer>") > 1:
            with pytest.raises(ParseError):
                extract(text, "answer")


def test_other_tags(make_batch: Make) -> None:
    assert score(FormatTags(tags=("answer",)), ["<answer>5</answer>", "a<answer>5</answer>"], make_batch) == [1, 0]
    three = FormatTags(tags=("observe", "think", "answer"))
    texts = ["<observe>x</observe><think>a</think><answer>5</answer>", "<think>a</think><answer>5</answer>"]
    assert score(three, texts, make_batch) == [1, 0]


def test_a_box_behind_the_thought(make_batch: Make) -> None:
    """EasyR1's pattern is <think>.*</think>.*\\\\boxed\\{.*\\}.*, which takes any number of thoughts and boxes."""
    table = {  # strict, graded: thirds of think, box, whole
        r"<think>a</think> so \boxed{5}.": (1, 1),
        "<think>a</think>\n\\boxed{5}": (1, 1),
        r"<think>\boxed{4}?</think> \boxed{\frac{1}{2}}": (1, 1),
        r"x <think>a</think> \boxed{5}": (0, 2 / 3),
        r"<think>a</think> \boxed{5} \boxed{5}": (0, 1 / 3),
        r"<think>a \boxed{5}</think> it is 5": (0, 1 / 3),
        r"<think>a</think> \boxed{ }": (0, 1 / 3),
        r"<think>a</think> \boxed{5": (0, 1 / 3),
        r"<think></think> \boxed{5}": (0, 1 / 3),
        r"\boxed{5}": (0, 1 / 3),
        "5": (0, 0),
    }
    texts = list(table)
    assert score(FormatTags(tags=("think",), boxed=True), texts, make_batch) == [strict for strict, _ in table.values()]
    graded = score(FormatTags(tags=("think",), boxed=True, is_graded=True), texts, make_batch)
    assert dict(zip(texts, graded, strict=True)) == pytest.approx({text: value for text, (_, value) in table.items()})


@pytest.mark.parametrize("tags", [(), ("think", "think"), ("<think>",)])
def test_impossible_tags_are_refused(tags: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="tags must be different names"):
        FormatTags(tags=tags)


@pytest.mark.slow
@given(TEXTS)
def test_any_text_has_a_score_and_what_has_the_format_can_be_read(text: str) -> None:
    for reward in (FormatTags(), FormatTags(is_graded=True), FormatTags(tags=("think",), boxed=True, is_graded=True)):
        check_scores(reward, answers([text, f"<think>{text}</think><answer>{text}</answer>"]))
    if FormatTags().score(answers([text])).tolist() == [1]:
        assert extract(text, "answer").strip() and extract(text, "think").strip()


@pytest.mark.timeout(60)
def test_hostile_texts_have_scores() -> None:
    check_scores(FormatTags(is_graded=True), answers(HOSTILE))
    check_scores(FormatTags(tags=("think",), boxed=True, is_graded=True), answers(HOSTILE))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_has_no_format(piece: str) -> None:
    for reward in (FormatTags(is_graded=True), FormatTags(tags=("think",), boxed=True, is_graded=True)):
        check_scores(reward, answers(megabytes(piece)))
    assert FormatTags().score(answers(megabytes(piece))).tolist() == [0, 0, 0]
