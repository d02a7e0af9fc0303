"""REBEL by hand, and as a policy gradient at ratio 1."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.rloo import Rloo
from mmrl.core.contracts import LossBatch
from mmrl.core.data import Scores
from mmrl.losses.rebel import Rebel
from mmrl.losses.reinforce import Reinforce
from tests.losses.path_batches import batch_of, column, normal, step_gradient, step_loss


def test_a_pair_by_hand() -> None:
    """((0.3 + 0.1) / 0.5 - (1 - 0.25))^2 = 0.05^2, and its slope 2 * 0.05 / 0.5."""
    measures, batch = (column([0.3, -0.1]),), batch_of([1.0, 0.25])
    loss = Rebel(eta=0.5)
    assert step_loss(loss, measures, batch).item() == pytest.approx(0.0025)
    assert step_gradient(loss, measures, batch)[:, 0].tolist() == pytest.approx([0.2, -0.2])
    assert loss(measures, batch).metrics["reward_error"][:, 0].tolist() == pytest.approx([0.05, 0.05])


def test_it_is_zero_where_log_ratios_are_eta_times_the_rewards() -> None:
    scores = [0.3, 1.0, -0.4, 0.3]
    measures, batch = (column([0.7 * score + 5.0 for score in scores]),), batch_of(scores)
    assert step_loss(Rebel(eta=0.7), measures, batch).item() == pytest.approx(0, abs=1e-12)
    assert step_gradient(Rebel(eta=0.7), measures, batch).abs().max() < 1e-12


def test_all_pairs_hold_equal_rewards_together_and_extremes_leave_them_out() -> None:
    ratios, scores = [0.4, 0.1, 0.0], [1.0, 1.0, 0.0]
    errors = [(0.4 - 0.1) ** 2, (0.4 - 1.0) ** 2, (0.1 - 1.0) ** 2]
    assert step_loss(Rebel(), (column(ratios),), batch_of(scores)).item() == pytest.approx(sum(errors) / 3)
    ends = step_loss(Rebel(pairs="extremes"), (column(ratios),), batch_of(scores))
    assert ends.item() == pytest.approx(sum(errors[1:]) / 2)


def test_at_ratio_one_it_is_reinforce_with_leave_one_out_advantages() -> None:
    """sum over pairs of (r_i - r_j) (g_i - g_j) = n sum of (r_i - mean) g_i; groups of three and of two, one absent."""
    weight = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    batch = batch_of([0.3, 1.0, -0.4, 2.0, 9.0, 0.5], [1, 1, 1, 4, 4, 4], weight)
    log_prob = normal(0, 6, 2).requires_grad_()
    got = step_gradient(Rebel(eta=0.8), (log_prob - log_prob.detach(),), batch)
    valid, count = weight.sum(1) > 0, torch.arange(6)
    scores = Scores(batch.scores[:, None].float(), ("r",), (1.0,), valid, batch.group, count, count * 0)
    advantages = Rloo()(scores).double()[:, None].expand(6, 2)
    policy_gradient = Reinforce(normalise="constant")
    like = LossBatch(advantages, batch.weight, batch.group, batch.scores)
    expected = step_gradient(policy_gradient, (log_prob,), like)
    assert_close(got, 4 / 0.8 * expected, rtol=1e-6, atol=1e-7)
    assert got.abs().max() > 0.1


def test_eta_is_refused_where_it_is_not_above_zero() -> None:
    settings: dict[str, Any] = {"eta": 0.0}
    with pytest.raises(ValueError, match=r"eta must be above 0, got 0\.0"):
        Rebel(**settings)
