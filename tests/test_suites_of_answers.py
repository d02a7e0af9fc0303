"""The suites of answers and actions: their rows, and their numbers of planted scores, counted by hand."""

import pytest

from mmrl.core.suites import load_suite
from mmrl.prompts.datasets import layout_names
from mmrl.scoring.suite_numbers import SampleScore, estimate, estimates_by_kind

# a kind and a score for each prompt, the main number, and some of the others by name
PLANTED = {
    "screenspot": (
        [("web icon", 1.0), ("web icon", 0.0), ("web icon", 0.0), ("web icon", 0.0), ("mobile text", 1.0)],
        0.625,  # (1/4 + 1) / 2
        {"all_clicks": 0.4},
    ),
    "screenspot_v2": ([("web icon", 1.0), ("web icon", 0.0), ("web icon", 0.0), ("mobile text", 1.0)],
                      0.5, {"kinds": 2 / 3}),
    "screenspot_pro": ([("", 1.0), ("", 0.0), ("", 0.0)], 1 / 3, {}),
    "osworld_g": ([("", 1.0), ("", 1.0), ("", 0.0)], 2 / 3, {}),
    "android_control": ([("low", 1.0), ("low", 0.5), ("high", 0.5), ("high", 0.0)],
                        0.25, {"type": 0.75, "actions": 0.25}),
    "refcoco": ([("testA", 0.5), ("testA", 0.4999), ("val", 0.9)], 2 / 3, {"mean_iou": 1.8999 / 3}),
    "refcoco_plus": ([("testA", 0.2), ("testA", 0.6)], 0.5, {"mean_iou": 0.4}),
    "refcocog": ([("val", 0.7), ("test", 0.3)], 0.5, {"mean_iou": 0.5}),
    "reason_seg": ([("", 0.25), ("", 0.75), ("", 0.5)], 0.5, {"over_half": 2 / 3}),
    "math_vista": ([("a", 1.0), ("a", 0.0), ("b", 1.0), ("b", 1.0)], 0.75, {}),
    "mmmu": ([("Art", 1.0), ("Art", 0.0), ("Art", 0.0), ("Music", 1.0)], 0.5, {"subjects": 2 / 3}),
    "geometry3k": ([("", 1.0), ("", 0.0), ("", 0.0), ("", 0.0)], 0.25, {}),
    "charades_sta": ([("", 0.3), ("", 0.5), ("", 0.69), ("", 0.0)], 1.49 / 4,
                     {"recall_at_0.3": 0.75, "recall_at_0.5": 0.5, "recall_at_0.7": 0.0}),
    "tvgbench": ([("", 0.7), ("", 0.1)], 0.4, {"recall_at_0.7": 0.5}),
    "video_mme": ([("short", 1.0), ("long", 0.0), ("long", 0.0)], 1 / 3, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_the_numbers_of_planted_scores_are_those_by_hand(name: str) -> None:
    rows, main, others = PLANTED[name]
    scores = [SampleScore(number, value, kind) for number, (kind, value) in enumerate(rows)]
    settings = load_suite(name).settings
    numbers = [(settings.number, main), *((settings.also[other], number) for other, number in others.items())]
    for how, expected in numbers:
        found = estimate(scores, how.how, how.at, resamples=2)
        assert found is not None and found.number == pytest.approx(expected, abs=1e-12)


def test_a_number_by_kinds_has_one_for_each() -> None:
    number = load_suite("video_mme").settings.number
    assert number.by == "length"
    scores = [SampleScore(0, 1.0, "short"), SampleScore(1, 0.0, "long"), SampleScore(2, 1.0, "long")]
    found = estimates_by_kind(scores, number.how, number.at, resamples=2)
    assert {kind: one.number for kind, one in found.items()} == {"long": 0.5, "short": 1.0}


@pytest.mark.parametrize("name", PLANTED)
def test_a_suite_is_greedy_and_names_a_layout(name: str) -> None:
    settings = load_suite(name).settings
    assert settings.sampler == {"temperature": 0} and settings.samples_per_prompt == 1 and settings.note
    assert {part.layout for part in settings.parts} <= set(layout_names())
    assert all(0 < one.number < 1 for one in settings.published)
