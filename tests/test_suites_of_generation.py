"""The suites of images and videos: their numbers of planted scores, counted by hand."""

import pytest

from mmrl.core.suites import load_suite
from mmrl.prompts.datasets import layout_names
from mmrl.scoring.suite_numbers import SampleScore, estimate

# the prompt, its kind and the score of each sample; the main number, and the others by name
PLANTED = {
    "geneval": (
        [(0, "counting", 1.0), (0, "counting", 0.0), (1, "counting", 0.0), (2, "colors", 1.0)],
        (1 / 3 + 1) / 2,
        {"images": 0.5, "prompts": 2 / 3},
    ),
    "geneval2": ([(0, "3", 0.25), (1, "7", 0.5)], 0.375, {"atoms": 0.375}),
    "dpg_bench": ([(0, "", 0.5), (0, "", 1.0), (1, "", 0.0)], 0.5, {}),
    "dsg_1k": ([(0, "vrd", 0.25), (1, "whoops", 1.0)], 0.625, {}),
    "ocr_flow_grpo": ([(0, "", 1.0), (1, "", 0.2)], 0.6, {}),
    "unigenbench": ([(0, "Art", 0.5), (0, "Art", 1.0), (1, "Design", 0.0)], 0.5, {}),
    "t2i_compbench": ([(0, "color", 0.2), (1, "color", 0.4), (2, "shape", 0.9)], 0.6, {}),
    "drawbench": (
        [(0, "Colors", 20.0), (1, "Text", 22.0)],
        21.0,
        dict.fromkeys(("image_reward", "aesthetic", "deqa"), 21.0),
    ),
    "gedit_bench": (
        [(0, "color_alter", 0.5), (1, "color_alter", 1.0), (2, "subject-remove", 0.0)],
        (0.75 + 0) / 2,
        {"edits": 0.5, "languages": 0.5},
    ),
    "vbench": ([(0, "", 0.8), (1, "", 0.4)], 0.6, {"moving": 0.5}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_numbers_of_planted_scores_are_those_by_hand(name: str) -> None:
    rows, main, others = PLANTED[name]
    settings = load_suite(name).settings
    scores = [SampleScore(prompt, value, kind) for prompt, kind, value in rows]
    assert settings.also.keys() == others.keys()
    for number, expected in [(settings.number, main), *((settings.also[one], others[one]) for one in others)]:
        found = estimate(scores, number.how, number.at, resamples=2)
        assert found is not None and found.number == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", PLANTED)
def test_a_suite_says_how_it_differs_and_names_a_layout(name: str) -> None:
    settings = load_suite(name).settings
    assert settings.kind in ("images", "videos") and settings.note
    assert {part.layout for part in settings.parts} <= set(layout_names())
