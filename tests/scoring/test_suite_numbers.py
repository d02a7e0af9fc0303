"""The arithmetic of suites, against counts by hand, a slow loop and scipy's bootstrap."""

import numpy as np
import pytest

from mmrl.scoring.suite_numbers import SampleScore, estimate, estimates_by_kind

TABLE: list[tuple[int, str, list[float | None]]] = [  # prompt, kind, scores of its samples
    (0, "one", [1.0, 0.0, 1.0, 1.0]),
    (1, "one", [0.0, 0.0]),
    (2, "two", [0.5, None]),
    (3, "two", [None]),
]
SCORES = [SampleScore(prompt, value, kind) for prompt, kind, values in TABLE for value in values]


def number(how: str, at: float | None = None) -> float:
    found = estimate(SCORES, how, at)  # type: ignore[arg-type]
    assert found is not None
    return found.number


def test_numbers_are_those_by_hand() -> None:
    assert number("mean") == pytest.approx(3.5 / 7)
    assert number("mean_of_kinds") == pytest.approx((3 / 6 + 0.5) / 2)
    assert number("share_at_least", 0.5) == pytest.approx(4 / 7)
    assert number("best_of") == pytest.approx((1 + 0 + 0.5) / 3)
    assert number("best_of", 0.5) == pytest.approx(2 / 3)
    assert number("mean_of_kinds", 0.6) == pytest.approx((3 / 6 + 0) / 2)


def test_what_was_not_judged_does_not_count() -> None:
    found = estimate(SCORES, "mean")
    assert found is not None and (found.prompts, found.samples) == (3, 7)
    assert estimate([SampleScore(0, None)], "mean") is None


def test_kinds_have_numbers_of_their_own() -> None:
    found = estimates_by_kind([*SCORES, SampleScore(9, None, "none")], "mean_of_kinds")
    assert {kind: one.number for kind, one in found.items()} == {"one": 0.5, "two": 0.5}


def test_the_interval_resamples_prompts_with_all_their_samples() -> None:
    """The same draws in a slow loop: samples of a prompt come and go together."""
    found = estimate(SCORES, "mean", seed=3, resamples=50)
    judged = [[v for v in values if v is not None] for _, _, values in TABLE[:3]]
    chosen = np.random.default_rng(3).integers(0, 3, (50, 3))
    means = [np.mean([v for prompt in row for v in judged[prompt]]) for row in chosen.tolist()]
    assert found is not None
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))


def test_the_interval_of_a_mean_of_kinds_takes_as_many_of_each_kind() -> None:
    """The same draws in a slow loop: kinds one after the other, each from its own prompts."""
    table = {"a": [[1.0, 0.0], [0.0], [1.0]], "b": [[0.5], [0.25, 1.0]]}
    scores, prompt = [], 0
    for kind, prompts in table.items():
        for values in prompts:
            scores += [SampleScore(prompt, value, kind) for value in values]
            prompt += 1
    found = estimate(scores, "mean_of_kinds", seed=5, resamples=40)
    rng, means = np.random.default_rng(5), []
    for prompts in table.values():
        chosen = rng.integers(0, len(prompts), (40, len(prompts))).tolist()
        means.append([np.mean([value for one in row for value in prompts[one]]) for row in chosen])
    assert found is not None and (found.prompts, found.samples) == (5, 7)
    low, high = np.quantile(np.mean(means, 0), [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high)) and found.low < found.number < found.high


def test_many_resamples_are_taken_in_parts_of_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = [SampleScore(number, number / 10) for number in range(10)]
    whole = estimate(scores, "mean", seed=1, resamples=101)
    monkeypatch.setattr("mmrl.scoring.suite_numbers.AT_ONCE", 70)  # 7 resamples at once
    assert estimate(scores, "mean", seed=1, resamples=101) == whole


def test_a_number_of_kinds_is_computed_as_the_whole_is() -> None:
    found = estimates_by_kind(SCORES, "share_at_least", 0.75)
    assert {kind: one.number for kind, one in found.items()} == {"one": 0.5, "two": 0.0}
    more = SampleScore(1, 0.75, "one")
    best = estimates_by_kind([*SCORES, more], "best_of")
    assert {kind: (one.number, one.prompts, one.samples) for kind, one in best.items()} == {
        "one": ((1 + 0.75) / 2, 2, 7),
        "two": (0.5, 1, 1),
    }


def test_a_ratio_is_that_of_the_sums_with_an_interval_over_prompts() -> None:
    """A cIoU: intersections of 10 and 0 pixels by unions of 10 and 90, where the mean of the ratios is 0.5."""
    scores = [SampleScore(0, 10.0, over=10.0), SampleScore(1, 0.0, over=90.0), SampleScore(2, None, over=7.0)]
    found = estimate(scores, "ratio", seed=5, resamples=40)
    assert found is not None and found.number == pytest.approx(0.1) and found.prompts == 2
    chosen = np.random.default_rng(5).integers(0, 2, (40, 2))
    ratios = [sum((10.0, 0.0)[n] for n in row) / sum((10.0, 90.0)[n] for n in row) for row in chosen.tolist()]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(ratios, [0.025, 0.975])))
    assert estimate([SampleScore(0, 0.0, over=0.0)], "ratio") is None


@pytest.mark.slow
def test_the_interval_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).random(60)
    found = estimate([SampleScore(n, float(v)) for n, v in enumerate(values)], "mean", seed=1, resamples=20_000)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(2))
    assert found is not None
    assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval), abs=3e-3)
