"""The card of a suite: units, kinds and means by hand, and texts of data that stay texts."""

from typing import Any

import pytest

from mmrl.commands.suite import _check_only
from mmrl.commands.suite_card import markdown, numbers_of, shown
from mmrl.core.contracts import ConfigError
from mmrl.core.suites import NumberSettings, SuiteSettings, load_suite
from mmrl.run_directory.suite_results import SampleResult
from mmrl.system.progress_bars import Screen
from mmrl.training.suite_run import spread

SETTINGS: dict[str, Any] = {
    "title": "Redness",
    "source": "a test",
    "kind": "images",
    "data": "nowhere",
    "prompts": {"path": "prompts.jsonl", "layout": "columns"},
    "rewards": [{"name": "ocr", "label": "one"}, {"name": "clip", "label": "two"}],
}
ROWS = [(0, 0.5, 1.0), (0, 1.0, None), (1, 0.0, 0.25), (2, None, 0.5)]  # prompt, and the score of each reward
RESULTS = [
    SampleResult(prompt, number, "a", {"one": one, "two": two}, None if None in (one, two) else one)
    for number, (prompt, one, two) in enumerate(ROWS)
]
KINDS = {"kind": {0: "x", 1: "y", 2: "y"}}


def numbers(number: dict[str, Any], **also: dict[str, Any]) -> dict[str, Any]:
    return numbers_of(SuiteSettings(**SETTINGS | {"number": number, "also": also}), RESULTS, KINDS)


def test_a_number_is_of_its_reward_in_its_unit() -> None:
    found = numbers({"of": "one"})
    assert found["number"] == pytest.approx(0.5) and found["kinds"] == {}
    assert (found["prompts"], found["samples"]) == (2, 3)
    percent = numbers({"of": "one", "how": "share_at_least", "at": 0.5, "unit": "percent"})
    assert percent["number"] == pytest.approx(100 * 2 / 3)
    assert all(0 <= end <= 100 for end in percent["interval"]) and percent["interval"][1] > 1
    assert numbers({})["number"] == pytest.approx(0.25), "the weighted sum, where both could judge"


def test_kinds_further_numbers_and_means_stand_beside_it() -> None:
    found = numbers({"of": "two", "how": "mean_of_kinds", "by": "kind"}, best={"of": "one", "how": "best_of"})
    assert {kind: one["number"] for kind, one in found["kinds"].items()} == pytest.approx({"x": 1.0, "y": 0.375})
    assert found["number"] == pytest.approx((1.0 + 0.375) / 2)
    assert found["also"]["best"]["number"] == pytest.approx((1.0 + 0.0) / 2)
    assert found["scores"] == pytest.approx({"one": 0.5, "two": 1.75 / 3})


def test_what_is_left_out_of_a_number_does_not_count_as_0() -> None:
    settings = {"of": "one", "how": "share_at_least", "at": 1.0, "by": "kind"}
    assert numbers(settings)["number"] == pytest.approx(1 / 3), "of 0.5, 1 and 0"
    assert numbers(settings | {"least": 0.5})["number"] == pytest.approx(1 / 2), "of 0.5 and 1"
    assert numbers(settings | {"only": ["x"]})["number"] == pytest.approx(1 / 2), "of the first prompt"
    of_kind = numbers(settings | {"only": ["y"]})
    assert of_kind["number"] == 0 and list(of_kind["kinds"]) == ["y"] and of_kind["samples"] == 1
    assert numbers(settings | {"only": ["y"], "least": 0.5})["number"] is None
    with pytest.raises(ValueError, match="only: names kinds, so it needs `by`"):
        NumberSettings(only=("x",))


def test_grounding_is_of_clicks_of_the_right_kind_alone() -> None:
    grounding = load_suite("android_control").settings.also["grounding"]
    own = grounding.model_copy(update={"of": "one"})
    scores = [("click", 1.0), ("click", 0.5), ("click", 0.0), ("type", 1.0), ("scroll", 0.5)]
    rows = [SampleResult(number, 0, "a", {"one": value}, value) for number, (_, value) in enumerate(scores)]
    kinds = {"action": {number: kind for number, (kind, _) in enumerate(scores)}}
    settings = SuiteSettings(**SETTINGS | {"number": own})
    assert numbers_of(settings, rows, kinds)["number"] == pytest.approx(1 / 2)


def card(**changes: Any) -> dict[str, Any]:
    rest = {
        "title": "T", "suite": "s", "remarks": [], "weights": {"of": "w", "sha256": None}, "suite_sha256": "1",
        "note": "", "config": "c", "source": "a paper", "data": ["d"], "prompts_tested": 2, "prompts_there": 3,
        "sampler": {}, "samples_per_prompt": 1, "rewards": [], "failures": 0, "seconds": 1.0, "processes": 1,
        "versions": {}, "published": [], "prompts_of_this_start": 2,
    }  # fmt: skip
    return {**rest, **numbers({"of": "one", "unit": "percent"}), **changes}


def test_a_card_says_the_number_with_its_interval() -> None:
    text = markdown(card())
    assert "**50 %**, 95% interval " in text and "(bootstrap over 2 prompts)" in text


def test_a_suite_of_which_nothing_could_be_judged_has_a_card_that_says_so() -> None:
    settings = SuiteSettings(**SETTINGS, number=NumberSettings(of="one"))
    nothing = numbers_of(settings, [SampleResult(0, 0, "a", {"one": None, "two": None}, None, "why")], KINDS)
    assert nothing["number"] is None
    assert "**none**, no sample could be judged" in markdown(card(failures=2, **nothing))


def test_a_card_of_a_suite_that_went_on_says_of_how_many_prompts_its_time_is() -> None:
    assert "| Time | 1.00 s in 1 process |" in markdown(card())
    assert "| Time | 1.00 s in 1 process for 1 of the 2 prompts; the others were there |" in markdown(
        card(prompts_of_this_start=1)
    )


def test_cards_are_markdown_in_a_pipe_and_laid_out_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = card(title="A_title", remarks=["\x1b[2J"])
    shown([one, one])
    piped = capsys.readouterr().out
    assert piped.count("# A\\_title") == 2 and "| Suite |" in piped and "\x1b" not in piped
    monkeypatch.setattr(Screen, "is_terminal", True)
    shown([one])
    laid_out = capsys.readouterr().out
    assert "A_title" in laid_out and "**" not in laid_out and "\x1b[2J" not in laid_out


def test_a_number_without_a_sample_that_counts_says_so() -> None:
    nothing = numbers({"of": "one", "by": "kind", "only": ["y"], "least": 0.5})
    assert "**none**, no sample that was judged counts" in markdown(card(**nothing))


def test_a_kind_that_no_prompt_has_is_refused_before_anything_is_sampled() -> None:
    wrong = SuiteSettings(**SETTINGS | {"number": {"of": "one"}, "also": {"x": {"by": "kind", "only": ["x", "zz"]}}})
    with pytest.raises(ConfigError, match=r"also\.x\.only: no prompt has the kind 'zz'; there are x, y"):
        _check_only(wrong, KINDS)


def test_texts_of_data_are_no_markup() -> None:
    hostile = "a|b <img src=x> [link](x) `code`\n# title"
    text = markdown(card(title=hostile, remarks=[hostile], config=hostile))
    assert "<img" not in text and "\n# title" not in text and "a\\|b" in text


@pytest.mark.parametrize(
    ("limit", "chosen"), [(None, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4]), (2, [0, 2]), (3, [0, 1, 3]), (1, [0])]
)
def test_a_try_is_spread_evenly_over_the_prompts(limit: int | None, chosen: list[int]) -> None:
    assert spread(5, limit) == chosen
