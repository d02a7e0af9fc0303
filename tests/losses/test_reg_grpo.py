"""Reg-GRPO by hand, at its optimum, and as a policy gradient at ratio 1."""

import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.losses.reg_grpo import RegGrpo
from mmrl.losses.reinforce import Reinforce
from tests.losses.path_batches import batch_of, column, normal, step_gradient, step_loss

RATIOS, ADVANTAGES = [0.5, -1.0, 2.0, 0.3], [1.2, -0.9, 0.4, -0.7]


def test_it_is_the_squared_error_of_the_normalised_log_ratio() -> None:
    mean, std = statistics.mean(RATIOS), statistics.pstdev(RATIOS)
    errors = [(a - (r - mean) / std) ** 2 for r, a in zip(RATIOS, ADVANTAGES, strict=True)]
    got = step_loss(RegGrpo(scale="group", epsilon=1e-9), (column(RATIOS),), batch_of(ADVANTAGES))
    assert got.item() == pytest.approx(sum(errors) / 4)


def test_with_a_beta_it_is_that_of_beta_times_the_centred_log_ratio() -> None:
    mean = statistics.mean(RATIOS)
    errors = [(a - 0.3 * (r - mean)) ** 2 for r, a in zip(RATIOS, ADVANTAGES, strict=True)]
    got = step_loss(RegGrpo(scale="beta", beta=0.3), (column(RATIOS),), batch_of(ADVANTAGES))
    assert got.item() == pytest.approx(sum(errors) / 4)


@pytest.mark.parametrize("settings", [{"scale": "beta", "beta": 0.3}, {"scale": "group", "epsilon": 1e-9}])
def test_it_is_zero_where_the_prediction_is_the_advantage(settings: dict[str, Any]) -> None:
    """Advantages of mean 0 and variance 1; log-ratios 1 / beta times them (for `group` any scale), plus a constant."""
    raw = torch.tensor(ADVANTAGES).double()
    advantages = ((raw - raw.mean()) / raw.std(unbiased=False)).tolist()
    measures = (column([advantage / 0.3 + 4.0 for advantage in advantages]),)
    loss, batch = RegGrpo(**settings), batch_of(advantages)
    assert step_loss(loss, measures, batch).item() == pytest.approx(0, abs=1e-12)
    assert step_gradient(loss, measures, batch).abs().max() < 1e-9


@pytest.mark.parametrize(
    ("settings", "factor"),
    [({"scale": "beta", "beta": 0.3}, 0.6), ({"scale": "group", "epsilon": 0.01}, 200.0), ({}, 2.0)],
)
def test_at_ratio_one_it_is_reinforce(settings: dict[str, Any], factor: float) -> None:
    """Times 2 beta, or 2 / epsilon: no NaN where all log-ratios are 0 and their std has no slope."""
    advantages = [0.5, -0.75, 0.25, 1.0, -1.0]
    weight = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    batch, log_prob = batch_of(advantages, [0, 0, 0, 2, 2], weight), normal(0, 5, 2).requires_grad_()
    got = step_gradient(RegGrpo(**settings), (log_prob - log_prob.detach(),), batch)
    assert_close(got, factor * step_gradient(Reinforce(normalise="constant"), (log_prob,), batch))


def test_a_sample_has_the_mean_advantage_of_its_decisions() -> None:
    weight = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    batch = batch_of([0.0, 0.0], weight=weight)
    batch = replace(batch, advantages=torch.tensor([[1.0, 3.0, 50.0], [-1.0, 50.0, 50.0]]).double())
    got = RegGrpo(scale="beta")((torch.zeros(2, 3).double(),), batch)
    assert got.terms[:, 0].tolist() == [4.0, 1.0]
    assert got.metrics["advantage_error"][:, 0].tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": "std"}, "scale must be one of group, beta"),
        ({"beta": 0.0}, "beta must"),
        ({"epsilon": 0.0}, "epsilon"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RegGrpo(**settings)
