"""Rewards against the distance from the reference: points, fit and peak, against scipy and numbers by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import curve_fit, minimize_scalar

from mmrl.reporting.overoptimisation import Fit, fitted
from tests.report_pages import Page, read_page, run_of


def law(d: Any, alpha: float, beta: float) -> Any:
    return d * (alpha - beta * np.log(d))


def test_the_fit_has_the_least_squares() -> None:
    generator = np.random.default_rng(0)
    for alpha, beta in ((0.7, 0.4), (-0.2, 0.3), (0.5, -0.1)):
        d = np.sort(generator.uniform(0.05, 3.0, 12))
        gains = law(d, alpha, beta) + 0.02 * generator.normal(size=12)
        fit = fitted(d.tolist(), gains.tolist())
        assert fit is not None
        np.testing.assert_allclose((fit.alpha, fit.beta), curve_fit(law, d, gains)[0], rtol=1e-5)
        left = gains - law(d, fit.alpha, fit.beta)
        assert fit.error == pytest.approx(math.sqrt((left**2).mean()))


def test_the_peak_is_where_the_curve_is_highest() -> None:
    fit = Fit(0.7, 0.4, 0.0)
    assert fit.peak == pytest.approx(
        minimize_scalar(lambda d: -fit(d), bounds=(0.01, 20), method="bounded").x, abs=1e-4
    )
    assert fit(0.0) == 0.0 and fit(1.0) == pytest.approx(0.7)
    assert Fit(0.5, -0.1, 0.0).peak is None and Fit(1.0, 1e-9, 0.0).peak is None


def test_few_or_equal_distances_have_no_fit() -> None:
    assert fitted([0.1, 0.2, 0.3], [1.0, 2.0, 3.0]) is None
    assert fitted([0.1, 0.1, 0.2, 0.3], [1.0] * 4) is None
    assert fitted([0.1, 0.2, 0.3, 0.4], [0.0] * 4) == Fit(0.0, 0.0, 0.0)


def run_lines(*, with_kl: bool = True, evaluations: int = 7) -> list[dict[str, Any]]:
    """A run of which an evaluation every second iteration follows the law with its peak at e^0.5 = 1.649, KL e."""
    lines: list[dict[str, Any]] = [{"iteration": 0, "held_out/score": 0.25, "held_out/shape/mean": 0.25}]
    for iteration in range(1, 2 * evaluations - 1):
        kl = (0.25 * iteration) ** 2
        more = {"loss/kl": kl} if with_kl else {}
        lines.append({"iteration": iteration, "reward/mean": 0.1 * iteration, **more})
        if iteration % 2 == 0:
            after = (0.25 * (iteration + 1)) ** 2 if iteration < 2 * evaluations - 2 else kl
            score = 0.25 + law(math.sqrt((kl + after) / 2), 0.3, 0.2)
            lines.append({"iteration": iteration, "held_out/score": score, "held_out/shape/mean": score})
    return lines


def chart_of(page: Page, title: str) -> dict[str, Any]:
    charts = [box for box in page.all("div") if box.get("class") == "chart"]
    (chart,) = [box for box in charts if (box["aria-label"] or "").startswith(title)]
    numbers: dict[str, Any] = json.loads(chart["data-chart"] or "")
    return numbers


def test_the_scores_stand_over_the_root_of_the_kl_around_each_evaluation(tmp_path: Path) -> None:
    page = read_page(run_of(tmp_path, run_lines()))
    chart, of_reward = chart_of(page, "Held-out score by distance"), chart_of(page, "Training reward by distance")
    score, fit, peak = chart["lines"]
    assert chart["along"] == of_reward["along"] == "sqrt(KL)"
    at = [0.0] + [math.sqrt(((0.25 * n) ** 2 + (0.25 * (n + 1)) ** 2) / 2) for n in (2, 4, 6, 8, 10)] + [3.0]
    np.testing.assert_allclose(score["x"], at)
    assert [score["name"], fit["name"], peak["name"]] == ["held-out score", "fit", "peak of the fit"]
    np.testing.assert_allclose(fit["y"], [0.25 + (law(d, 0.3, 0.2) if d else 0) for d in fit["x"]], atol=1e-5)
    assert (peak["x"], peak["y"]) == (
        [pytest.approx(math.exp(0.5))],
        [pytest.approx(0.25 + 0.2 * math.exp(0.5), abs=1e-4)],
    )
    np.testing.assert_allclose(of_reward["lines"][0]["y"], [0.1, 0.25, 0.45, 0.65, 0.85, 1.05, 1.2])
    assert "its peak is 0.580 at a KL of 2.718" in page.text


def test_each_held_out_reward_has_a_line_where_there_are_several(tmp_path: Path) -> None:
    lines = [{**one, "held_out/<b>/mean": 0.5} if "held_out/score" in one else one for one in run_lines()]
    names = [one["name"] for one in chart_of(read_page(run_of(tmp_path, lines)), "Held-out score by distance")["lines"]]
    assert names == ["held-out score", "shape", "<b>", "fit", "peak of the fit"]


def test_without_a_kl_to_the_reference_or_with_few_evaluations_there_is_no_plot(tmp_path: Path) -> None:
    for name, lines in (("none", run_lines(with_kl=False)), ("few", run_lines(evaluations=2))):
        assert "by distance" not in read_page(run_of(tmp_path, lines, name=name)).text
    run = run_of(tmp_path, run_lines(), name="averaged")
    (run / "config.yaml").write_text("loss: {name: grpo, kl_to: averaged}\n")
    assert "by distance" not in read_page(run).text


def test_a_run_that_has_not_reached_its_peak_is_said_to_have_none(tmp_path: Path) -> None:
    page = read_page(run_of(tmp_path, run_lines(evaluations=4)))
    assert [one["name"] for one in chart_of(page, "Held-out score by distance")["lines"]] == ["held-out score"]
    page = read_page(run_of(tmp_path / "5", [one for one in run_lines(evaluations=5) if one["iteration"] < 6]))
    assert "peak of the fit" not in page.text
