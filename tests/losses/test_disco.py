"""DisCO by a slow loop: the good answers against the bad ones of their group, and the constraint on the step."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.core.contracts import LossBatch
from mmrl.losses.disco import Disco
from tests.losses.path_batches import batch_of, normal, step_gradient, step_loss

SCORES = [1.0, 0.0, 0.9, 0.1, 0.2, 1.0, 1.0, 0.0, 0.0]
GROUP = [4, 4, 4, 4, 4, 2, 2, 7, 7]  # mixed, all good, all bad
INSIDE = torch.arange(3) < torch.tensor([3, 1, 2, 3, 2, 1, 3, 2, 3])[:, None]
LOG_PROB = -normal(1, 9, 3).abs() * INSIDE
LOG_RATIO = 0.3 * normal(2, 9, 3) * INSIDE
MEASURES = (LOG_RATIO, LOG_PROB)


def _batch(step_mean: float = 0.0) -> LossBatch:
    return replace(batch_of(SCORES, GROUP, INSIDE), step_mean=torch.tensor(step_mean, dtype=torch.float64))


def _means(values: Tensor) -> list[float]:
    """Returns the mean over each sample's tokens, in a slow loop."""
    return [
        math.fsum(row[k] for k in range(3) if inside[k]) / sum(inside)
        for row, inside in zip(values.tolist(), INSIDE.tolist(), strict=True)
    ]


def _objective(s: list[float], tau: float | None) -> float:
    """Returns the paper's objective of the one mixed group: samples 0 and 2 are good, 1, 3 and 4 are bad."""
    good, bad = (s[0] + s[2]) / 2, [s[1], s[3], s[4]]
    if tau is None:
        return good - sum(bad) / 3
    return good - tau * math.log(sum(math.exp(one / tau) for one in bad) / 3)


@pytest.mark.parametrize("tau", [0.3, 10.0, None])
@pytest.mark.parametrize("score", ["log_likelihood", "likelihood_ratio"])
def test_the_objective_is_that_of_the_paper(tau: float | None, score: Any) -> None:
    s = _means(LOG_PROB) if score == "log_likelihood" else _means(LOG_RATIO.exp())
    got = step_loss(Disco(tau=tau, score=score), MEASURES, _batch())
    assert got.item() == pytest.approx(-_objective(s, tau) * 5 / 9)  # a group counts by its members
    by_group = step_loss(Disco(tau=tau, score=score, normalise="group"), MEASURES, _batch())
    assert by_group.item() == pytest.approx(-_objective(s, tau) / 3)  # of three groups, two of which have term 0


def test_good_is_what_is_above_the_bound_or_the_mean_of_its_group() -> None:
    """Rewards of 0.9, 0.6, 0.2 and twice 0.1: the mean is 0.38; equal ones have no good answer."""
    rewards = [0.9, 0.1, 0.6, 0.2, 0.1, 0.7, 0.7, 0.1, 0.1]
    batch = replace(batch_of(rewards, GROUP, INSIDE), step_mean=torch.zeros(()))
    s = _means(LOG_PROB)
    assert step_loss(Disco(normalise="group"), MEASURES, batch).item() == pytest.approx(-_objective(s, 10.0) / 3)
    above = Disco(positive_above=0.8, tau=None, normalise="group")
    want = s[0] - (s[1] + s[2] + s[3] + s[4]) / 4
    assert step_loss(above, MEASURES, batch).item() == pytest.approx(-want / 3)


def test_the_gradient_is_the_score_weighed_by_a_softmax_over_the_bad() -> None:
    log_prob = LOG_PROB.clone().requires_grad_()
    loss = Disco(tau=0.5, normalise="group")
    step_loss(loss, (LOG_RATIO, log_prob), _batch()).backward()
    s = _means(LOG_PROB)
    odds = {n: math.exp(s[n] / 0.5) for n in (1, 3, 4)}
    want = torch.zeros(9, 3, dtype=torch.float64)
    for n in range(5):
        slope = -0.5 if n in (0, 2) else odds[n] / sum(odds.values())
        want[n] = slope / 3 / int(INSIDE[n].sum()) * INSIDE[n]
    assert log_prob.grad is not None
    assert_close(log_prob.grad, want)


def test_beyond_the_bound_the_gradient_is_that_of_the_squared_hinge() -> None:
    """hinge_weight / 2 max(0, KL - bound)^2, by autograd on the KL itself."""
    loss = Disco(kl_bound=0.01, hinge_weight=7.0, score="likelihood_ratio", normalise="decision")
    ratio = (LOG_RATIO - 0.1 * INSIDE).requires_grad_()
    kl = -ratio[INSIDE].mean()
    assert kl.item() > 0.05
    (want,) = torch.autograd.grad(3.5 * (kl - 0.01).clamp(min=0).square(), ratio)
    measures = (ratio, LOG_PROB)
    with_it = step_gradient(loss, measures, _batch(kl.item()))
    without = step_gradient(loss, measures, _batch(0.009))
    assert_close(with_it - without, want)
    assert loss(measures, _batch(kl.item())).metrics["constraint"].min() == 1
    assert loss(measures, _batch(0.009)).metrics["constraint"].max() == 0
    assert_close(loss.averaged(measures), -ratio)


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="anchor must be 'old'"):
        Disco(anchor="reference")
    with pytest.raises(ValueError, match="needs the KL of the step"):
        Disco()(MEASURES, replace(_batch(), step_mean=None))
