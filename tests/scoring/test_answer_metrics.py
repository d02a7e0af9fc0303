"""The dominant format of answers, and rewards against likelihood: against counts by hand and scipy."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr

from mmrl.core.data import Outputs, Paths, Scores
from mmrl.scoring.answer_metrics import format_metrics, formats_of, likelihood_metrics


def scores_of(values: Any, group: Any, valid: Any = None) -> Scores:
    rows = torch.tensor(np.asarray(values)).float()
    none = torch.arange(len(rows))
    good = torch.ones(len(rows)).bool() if valid is None else torch.tensor(np.asarray(valid))
    names = ("a", "b")[: rows.shape[1]]
    weights = (1.0,) * rows.shape[1]
    return Scores(rows, names, weights, good, torch.tensor(group), episode=none, turn=torch.zeros_like(none))


def test_the_share_of_the_commonest_format_and_what_it_scores_more() -> None:
    values = [[1.0]] * 12 + [[0.25]] * 8 + [[math.nan]] * 2 + [[5.0]]
    scores = scores_of(values, [0] * 23, [True] * 20 + [False] * 2 + [True])
    metrics = format_metrics(scores, ["box"] * 12 + ["prose"] * 8 + ["prose"] * 2 + [None])
    assert metrics == {"answers/dominant_format": 0.6, "answers/dominant_lead": pytest.approx(0.75)}


def test_few_answers_of_another_format_have_no_lead_and_few_answers_no_share() -> None:
    scores = scores_of([[1.0]] * 10, [0] * 10)
    assert format_metrics(scores, ["a"] * 8 + ["b"] * 2) == {"answers/dominant_format": 0.8}
    assert format_metrics(scores, ["a"] * 7 + [None] * 3) == {}
    assert format_metrics(scores, [None] * 10) == {}


def test_formats_are_those_of_answers_without_controls() -> None:
    def rollout(outputs: Outputs, is_control: list[bool]) -> Any:
        return SimpleNamespace(outputs=outputs, num_samples=len(is_control), is_control=torch.tensor(is_control))

    assert formats_of(rollout(Outputs(texts=("<a> 1", "b", "")), [False, True, False])) == ("<a> number", None, "")
    each = Outputs.join([Outputs(images=torch.zeros(1, 3, 2, size), texts=("a",)) for size in (2, 4)])
    assert formats_of(rollout(each, [False, False])) == ("prose", "prose")
    assert formats_of(rollout(Outputs(images=torch.zeros(2, 3, 2, 2)), [False, False])) == ()


def paths_of(log_prob: Any, lengths: Any) -> Paths:
    is_there = np.arange(log_prob.shape[1]) < np.asarray(lengths)[:, None]
    edge = torch.tensor(np.where(is_there, np.arange(log_prob.size).reshape(log_prob.shape), -1))
    return Paths(edge, {"log_prob": torch.tensor(np.where(is_there, log_prob, 0.0)).float()})


def test_rewards_against_the_mean_log_prob_within_groups_are_scipys() -> None:
    generator = np.random.default_rng(1)
    group, lengths = np.repeat([3, 1, 7], 6), generator.integers(1, 6, 18)
    log_prob = generator.normal(size=(18, 5)) - 2.0
    means = np.array([row[:length].mean() for row, length in zip(log_prob, lengths, strict=True)])
    values = np.stack([means + generator.normal(size=18), generator.normal(size=18)], 1) + 9.0 * group[:, None]
    values[4, 1] = math.nan
    valid = np.arange(18) != 4
    found = likelihood_metrics(scores_of(values, group, valid), paths_of(log_prob, lengths))

    def expected(column: Any, counted: Any) -> float:
        left = [one[counted].copy() for one in (column, means)]
        for one in left:
            for number in set(group.tolist()):
                rows = group[counted] == number
                one[rows] -= one[rows].mean()
        return float(pearsonr(*left).statistic)

    assert found == {
        "follows/likelihood": pytest.approx(expected(values.sum(1), valid), abs=1e-5),
        "follows/a/likelihood": pytest.approx(expected(values[:, 0], np.ones(18) > 0), abs=1e-5),
        "follows/b/likelihood": pytest.approx(expected(values[:, 1], valid), abs=1e-5),
    }


def test_without_log_probs_or_spread_or_enough_samples_there_is_no_correlation() -> None:
    log_prob, group = np.random.default_rng(0).normal(size=(8, 3)), [0] * 8
    values = np.arange(8.0)[:, None]
    paths = paths_of(log_prob, [3] * 8)
    assert set(likelihood_metrics(scores_of(values, group), paths)) == {"follows/likelihood", "follows/a/likelihood"}
    assert likelihood_metrics(scores_of(values, group), None) == {}
    assert likelihood_metrics(scores_of(values, group), Paths(paths.edge)) == {}
    assert likelihood_metrics(scores_of(values * 0 + 0.7, group), paths) == {}
    assert likelihood_metrics(scores_of(values, list(range(8))), paths) == {}  # groups of one
    assert likelihood_metrics(scores_of(values[:7], group[:7]), paths[list(range(7))]) == {}
