"""Several spans of time against sets of moments, all matchings, and anchors by hand."""

import random
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.parsing.answers import MAX_SPANS, ParseError, Span
from mmrl.rewards.base.spans import gap_share, giou, iou, matched_iou, merged, read_anchors, union_iou
from mmrl.rewards.video.temporal_segments import TemporalSegments
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

TARGET = {"spans": [[2, 6], [10, 12]]}
SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda one: (one[0], sum(one))), max_size=4)


def random_batch(given: random.Random) -> RewardBatch:
    """The true spans with ends that are more and more off, with spans added, and none."""
    texts = ["<answer>[]</answer>"]
    for row in range(7):
        ends = [abs(end + given.gauss(0, row / 3)) for end in (2, 6, 10, 12)] + [20, 20 + row]
        number = 3 if given.random() < 0.2 else 2
        spans = [sorted((ends[2 * n], ends[2 * n + 1] + 0.1)) for n in range(number)]
        texts.append(f"<answer>{spans}</answer>")
    return answers(texts, TARGET)


EXAMPLE = Example(random_batch=random_batch, best=lambda: answers(["<answer>2 to 6 and 10 to 12</answer>"] * 4, TARGET))


def judge(texts: list[str], spans: Any, **settings: Any) -> list[float]:
    batch = answers(texts, {"spans": spans})
    found: list[float] = TemporalSegments(**({"tag": None} | settings)).score(batch).tolist()
    return found


def moments(spans: list[tuple[int, int]]) -> set[int]:
    return {moment for start, end in spans for moment in range(start, end)}


@given(SPANS, SPANS)
def test_the_union_counts_moments(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    ours, theirs = moments(left), moments(right)
    expected = len(ours & theirs) / len(ours | theirs) if ours or theirs else 1
    assert union_iou(left, right) == pytest.approx(expected) and union_iou(right, left) == pytest.approx(expected)
    assert moments([(int(start), int(end)) for start, end in merged(left)]) == ours
    assert judge([str([list(span) for span in left])], right) == pytest.approx([expected], abs=1e-6)


@given(SPANS, SPANS)
def test_the_matching_is_the_best_of_all(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    few, many = sorted((left, right), key=len)
    sums = [
        sum(len(moments([a]) & moments([b])) / len(moments([a, b])) for a, b in zip(few, chosen, strict=True))
        for chosen in permutations(many, len(few))
    ]
    expected = max(sums) / len(many) if many else 1
    assert matched_iou(left, right) == pytest.approx(expected)


@given(st.integers(0, 20), st.integers(1, 9), st.integers(0, 20), st.integers(1, 9))
def test_iou_and_giou_of_two_spans(start: int, length: int, other: int, size: int) -> None:
    a, b = (start, start + length), (other, other + size)
    both, hull = moments([a, b]), max(a[1], b[1]) - min(a[0], b[0])
    share = len(moments([a]) & moments([b])) / len(both)
    assert iou(a, b) == pytest.approx(share)
    assert giou(a, b) == pytest.approx(share - (hull - len(both)) / hull)


def test_numbers_by_hand() -> None:
    truth = [[2, 6], [10, 12]]
    texts = [
        "2 to 6, 10 to 12",
        "[[10, 12], [2, 6]]",
        "2 to 4 and 4 to 6 and 10 to 12",
        "2 to 12",
        "2 to 6",
        "[]",
        "no",
        "[(2, 6), (10.0, 12)]",  # as VideoChat-R1 asks for
    ]
    assert judge(texts, truth) == pytest.approx([1, 1, 1, 0.6, 4 / 6, 0, 0, 1])
    assert judge(texts, truth, kind="matched") == pytest.approx([1, 1, 1.5 / 3, 0.2, 0.5, 0, 0, 1])


def test_spans_for_none_and_none_for_some() -> None:
    for kind in ("union", "matched"):
        assert judge(["[]", "1 to 2", "none"], [], kind=kind) == [1, 0, 0]
        assert judge(["[]"], [[1, 2]], kind=kind) == [0]


def test_more_spans_never_pay_where_they_are_matched() -> None:
    once, twice, spray = judge(
        ["2 to 6", "2 to 6, 2 to 6", str([[n, n + 1] for n in range(12)])], [[2, 6]], kind="matched"
    )
    assert once == 1 and twice == 0.5 and spray == pytest.approx(0.25 / 12)
    assert judge(["2 to 6, 2 to 6"], [[2, 6]]) == [1], "as time they are the same"
    assert judge(["0 to 1, " * (MAX_SPANS + 1)], [[0, 1]]) == [0]


@in_one_test("text", ["6 to 2", "[[2, 6], [12, 10]]", "[[2, 6], [10, 10]]", "[2, 6, 10]", "1:20 to 1:30"])
def test_what_is_no_span_scores_0(text: str) -> None:
    assert judge([text], [[2, 6], [10, 12]]) == [0]


def thought(*spans: str, answer: str = "2 to 6") -> str:
    anchors = " then ".join(f"<timestamp>{span}</timestamp>" for span in spans)
    return f"<think>I see {anchors}.</think><answer>{answer}</answer>"


ANCHORED = {"tag": "answer", "anchors": "timestamp"}
GUARDED = ANCHORED | {"form": "guarded"}


def test_anchors_should_come_closer() -> None:
    texts = [
        thought("0 to 9", "1 to 6", "2 to 6"),  # 4/9, 4/5, 1, 1
        thought("1 to 6", "0 to 9"),  # 4/5, 4/9, 1: one of two steps
        thought("2 to 6", "2 to 6", "2 to 6"),  # one anchor
        thought("2 to 6", answer="2 to 4"),  # 1, 1/2: no step, however good the anchor
        thought("8 to 9", answer="2 to 4"),  # 0, 1/2
        thought(),
        thought("soon"),
        thought("6 to 2"),
        thought("1 to 2 and 3 to 4"),
        "<answer>2 to 6</answer><timestamp>2 to 6</timestamp>",
        thought("2 to 6").replace("</timestamp>", ""),
        thought("2 to 6").replace("</timestamp>", "</timestamp></timestamp>"),
    ]
    assert judge(texts, [[2, 6]], **GUARDED) == pytest.approx([1, 0.5, 1, 0, 0.5, 0, 0, 0, 0, 0, 0, 0])
    added = [
        1 + (4 / 9 + 2 * 4 / 5 + 3 * 1) / 6 + 1,
        1 + (4 / 5 + 2 * 4 / 9) / 3 + 1 / 2,
        1 + 1 + 1,
        1 / 2 + 1 + 0,  # a good anchor pays
        1 / 2 - 2 / 7 + 1,  # 8 to 9 leaves a gap of 2 in a hull of 7
        *[1] * 7,
    ]
    assert judge(texts, [[2, 6]], **ANCHORED) == pytest.approx([score / 3 for score in added], abs=1e-6)


def test_an_answer_that_does_not_meet_the_truth_is_below_0_where_terms_are_added() -> None:
    texts = [thought("8 to 9", answer="7 to 8"), thought("7 to 8", answer="8 to 9"), thought(answer="8 to 9"), "no"]
    signed = [-1 / 6 - 2 / 7 + 1, -2 / 7 - 1 / 6, -2 / 7, 0]
    assert judge(texts, [[2, 6]], **ANCHORED) == pytest.approx([score / 3 for score in signed], abs=1e-6)
    assert judge(texts, [[2, 6]], **GUARDED) == [0] * 4
    assert TemporalSegments(anchors="t").range == (-2 / 3, 1.0)
    assert TemporalSegments(anchors="t", form="guarded").range == TemporalSegments().range == (0.0, 1.0)


@given(SPANS.filter(bool), SPANS.filter(bool))
def test_the_gap_between_two_sets_of_spans(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    hulls = [(min(start for start, _ in one), max(end for _, end in one)) for one in (left, right)]
    covered = moments([*hulls])
    hull = range(min(covered), max(covered) + 1)
    assert gap_share(left, right) == pytest.approx(1 - len(covered) / len(hull))


def test_repeating_an_anchor_does_not_dilute_a_step_away() -> None:
    once, often = judge([thought("1 to 6", "0 to 9"), thought(*["1 to 6"] * 50, "0 to 9")], [[2, 6]], **GUARDED)
    assert once == often == 0.5
    assert judge([thought(*["1 to 6", "0 to 9"] * MAX_SPANS)], [[2, 6]], **GUARDED) == [0]


def test_anchors_are_read_before_the_answer_only() -> None:
    text = "<t>1 to 2</t> and <t>3 - 4</t> <answer> <t>5 to 6</t>"
    expected: tuple[Span, ...] = ((1, 2), (3, 4))
    assert read_anchors(text, "t", text.index("<answer>")) == expected
    with pytest.raises(ParseError, match="closed once"):
        read_anchors("<t><t>1 to 2</t></t>", "t", 99)


def test_a_truth_of_more_spans_than_an_answer_may_have_is_an_error() -> None:
    """The truth itself would score 0."""
    spans = [[second, second + 0.5] for second in range(MAX_SPANS + 1)]
    assert judge([str(spans[1:])], spans[1:]) == [1]
    with pytest.raises(ValueError, match=rf"target\.spans may hold {MAX_SPANS} spans, as many as an answer, got 101"):
        judge([str(spans)], spans)


@pytest.mark.parametrize("spans", [None, "1 to 2", [1, 2], [[2, 1]], [[1, 2], [3]], [[1, "2"]], [[-1, 2]]], ids=str)
def test_a_target_that_is_no_list_of_spans_is_an_error(spans: Any) -> None:
    with pytest.raises(
        ValueError, match=r"target\.spans must be a list|a span of target\.spans must be \[start, end\]"
    ):
        judge(["1 to 2"], spans)
    with pytest.raises(ValueError, match=r"target\.spans"):
        TemporalSegments().check(answers([""], {"spans": spans}).prompts[0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "iou"}, "kind must be one of union, matched"),
        ({"form": "product"}, "form must be one of added, guarded"),
        ({"anchors": "<t>"}, "tags must be"),
        ({"anchors": "timestamp", "tag": None}, "anchors stand before the tag of the answer"),
        ({"anchors": "answer"}, "anchors stand before the tag of the answer"),
    ],
    ids=range(5),
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TemporalSegments(**wrong)


REWARDS = (
    TemporalSegments(),
    TemporalSegments(kind="matched", tag=None),
    TemporalSegments(anchors="think", form="guarded"),
    TemporalSegments(kind="matched", anchors="answer", tag="think"),
)


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_any_text_has_a_score(texts: list[str]) -> None:
    for reward in REWARDS:
        check_scores(reward, answers(texts, TARGET))


def test_hostile_texts_have_scores() -> None:
    for reward in REWARDS:
        check_scores(reward, answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_has_a_score(piece: str) -> None:
    for reward in REWARDS:
        check_scores(reward, answers(megabytes(piece), TARGET))
