"""The curves of the report: held-out scores of further samplers, numbers that are not finite, long runs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from mmrl.environments.base.chromium import find_executable
from mmrl.reporting.report import write_report
from tests.report_pages import HELD_OUT, SUMMARY, TRAINING, Page, read_page, run_of


def test_values_that_are_not_finite_are_counted_and_not_drawn(tmp_path: Path) -> None:
    losses = [1.0, float("nan"), None, float("inf"), 2.0]
    lines = [{"iteration": index, "loss/total": loss, "loss/kl": float("nan")} for index, loss in enumerate(losses)]
    page = read_page(run_of(tmp_path, lines))
    assert "3 values were not finite" in page.text
    assert "5 values were not finite" in page.text
    assert _lines(page, "Loss") == [{"name": "loss", "colour": 1, "x": [0, 4], "y": [1, 2]}]


def _lines(page: Page, title: str) -> list[dict[str, Any]]:
    """The lines of the chart with this title."""
    charts = [box for box in page.all("div") if box.get("class") == "chart"]
    (chart,) = [box for box in charts if (box["aria-label"] or "").startswith(title)]
    lines: list[dict[str, Any]] = json.loads(chart["data-chart"] or "")["lines"]
    return lines


def _with_greedy(lines: list[dict[str, Any]], values: tuple[float, ...] = (0.5, 0.9, 0.875)) -> list[dict[str, Any]]:
    return [{**line, "held_out_greedy/score": value} for line, value in zip(lines, values, strict=True)]


def test_further_samplers_stand_beside_the_held_out_score(tmp_path: Path) -> None:
    page = read_page(run_of(tmp_path, [*_with_greedy(HELD_OUT), *TRAINING]))
    assert "rose from 0.250 to 0.750 (greedy: 0.500 to 0.875) in 30 s" in page.text
    assert "best 0.875, greedy 0.500 \N{RIGHTWARDS ARROW} 0.875" in page.text
    assert [(line["name"], line["y"]) for line in _lines(page, "Held-out score")] == [
        ("held-out score", [0.25, 0.875, 0.75]),
        ("greedy", [0.5, 0.9, 0.875]),
    ]


def test_the_summary_s_word_on_a_further_sampler_goes_before_the_metrics(tmp_path: Path) -> None:
    summary = {**SUMMARY, "held_out_greedy": {"before": 0.111, "after": 0.222}}
    assert "(greedy: 0.111 to 0.222)" in read_page(run_of(tmp_path / "1", _with_greedy(HELD_OUT), summary)).text
    summary["held_out_greedy"] = {"before": 0.111, "after": None}
    assert "(greedy: 0.500 to 0.875)" in read_page(run_of(tmp_path / "2", _with_greedy(HELD_OUT), summary)).text
    assert "(greedy" not in read_page(run_of(tmp_path / "3", _with_greedy(HELD_OUT)[:1], summary)).text


def test_a_reward_has_a_held_out_curve_for_each_sampler(tmp_path: Path) -> None:
    held_out = [
        {**line, "held_out/shape/mean": 0.1 * n, "held_out_greedy/shape/mean": 0.2 * n}
        for n, line in enumerate(_with_greedy(HELD_OUT))
    ]
    page = read_page(run_of(tmp_path, [*held_out, *TRAINING]))
    names = [line["name"] for line in _lines(page, "shape")]
    assert names == ["training", "held-out", "held-out, greedy"]


def test_curves_that_never_move_are_a_line_of_words(tmp_path: Path) -> None:
    lines = [
        {
            "iteration": index,
            "loss/ratio": 1.0 + 1e-9 * index,
            "loss/kl": 0.0,
            "loss/clip_fraction_low": 0.0,
            "loss/clip_fraction_high": 0.25,
            "optimizer/learning_rate": 1e-5,
            "optimizer/grad_norm": 1.0 + index,
            "reward/format/mean": 0.5,
            "reward/format/std": 0.0,
            "reward/shape/mean": 0.5,
            "reward/shape/std": 0.1 * index,
        }
        for index in range(3)
    ]
    page = read_page(run_of(tmp_path, lines))
    drawn = {(box["aria-label"] or "").split(":")[0] for box in page.all("div") if box.get("class") == "chart"}
    assert drawn == {"Gradient norm", "shape"}
    assert "Never movedformat0.500" in page.text
    assert "Never movedProbability ratio1.000KL to the reference0" in page.text
    assert "Clipped share" in page.text and "below the range 0, above the range 0.250Learning rate1.00e" in page.text


def test_metrics_with_one_value_are_not_called_constant(tmp_path: Path) -> None:
    page = read_page(run_of(tmp_path, [{"iteration": 1, "loss/kl": 0.5, "optimizer/grad_scale": 2.0}]))
    assert "One value so farKL to the reference0.500Optimizer: grad scale2" in page.text
    assert "Never moved" not in page.text


@pytest.mark.slow
def test_a_long_run_stays_small_and_keeps_its_spike(tmp_path: Path) -> None:
    lines = [{"iteration": index, "loss/total": float(index % 7), "optimizer/grad_norm": 1.0} for index in range(5_000)]
    lines[3_456]["loss/total"] = 123.0
    page = write_report(run_of(tmp_path, lines))
    assert page.stat().st_size < 150_000
    (line,) = _lines(read_page(page.parent), "Loss")
    assert line["y"][line["x"].index(3_456)] == 123


def test_the_band_of_a_reward_is_its_own_spread(tmp_path: Path) -> None:
    (line,) = _lines(read_page(run_of(tmp_path, TRAINING)), "Training reward")
    assert (line["low"], line["high"]) == ([-0.1, 0, 0.1], [0.3, 0.4, 0.5])  # 0.1, 0.2, 0.3 and 0.2 around them


@pytest.mark.slow  # a browser
def test_a_browser_draws_every_chart_and_blocks_nothing(tmp_path: Path) -> None:
    page = write_report(run_of(tmp_path, [*_with_greedy(HELD_OUT), *TRAINING]))
    said: list[str] = []
    with sync_playwright() as playwright:
        program = find_executable(None, Path(playwright.chromium.executable_path))
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        shown = browser.new_page()
        shown.on("console", lambda message: said.append(message.text))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.goto(page.as_uri())
        assert shown.locator("canvas").count() == shown.locator(".chart").count() > 1
        shown.locator(".chart .u-over").first.hover()
        assert (shown.locator("#tip").text_content() or "").splitlines()[0].startswith("iteration ")
        browser.close()
    assert said == []


def test_time_is_shared_out_and_what_is_left_is_named(tmp_path: Path) -> None:
    page = read_page(run_of(tmp_path, [*HELD_OUT, *TRAINING]))
    assert [rect["width"] for rect in page.all("rect")] == ["300", "600", "100"]
    for cell in ("30.0 %", "9.00 s", "3.00 s", "other", "10.0 %", "1.00 s", "Evaluation took 6.00 s more"):
        assert cell in page.text


def test_the_time_of_environments_is_apart_from_that_of_sampling(tmp_path: Path) -> None:
    acting = {"time/environment": 1.0, "time/environment_workers": 2.0}
    text = read_page(run_of(tmp_path, [line | acting for line in TRAINING])).text
    shown = re.sub(r"\s+", " ", text)
    assert "environmentpages and screens that the rollout waited for10.0 %3.00 s1.00 s" in shown
    assert "rolloutsampling: prompts and network calls20.0 %6.00 s2.00 s" in shown, "3 seconds each, 1 of it waiting"
    assert "other" in shown and "Copies of the environment worked for 6.00 s, side by side." in shown
    assert "environment_workers" not in shown
    without = read_page(run_of(tmp_path, TRAINING, name="another")).text
    assert "environment" not in without


def test_more_waiting_than_sampling_is_no_negative_time(tmp_path: Path) -> None:
    odd = {"time/environment": 4.0}  # clocks differ
    text = read_page(run_of(tmp_path, [line | odd for line in TRAINING])).text
    assert "rolloutsampling: prompts and network calls0.0 %" in text
