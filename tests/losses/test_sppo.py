"""SPPO by hand, at its optimum, and as a policy gradient at ratio 1."""

import pytest
from torch.testing import assert_close

from mmrl.losses.gvpo import Gvpo
from mmrl.losses.reinforce import Reinforce
from mmrl.losses.sppo import Sppo
from tests.losses.path_batches import batch_of, column, normal, step_gradient, step_loss

RATES = [1.0, 0.0, 0.5]


def test_each_sample_regresses_on_its_win_rate_by_hand() -> None:
    """(0.5 - 2 / 2)^2, (-3 + 2 / 2)^2 and (0.1 - 0)^2."""
    result = Sppo(eta=2.0)((column([0.5, -3.0, 0.1]),), batch_of(RATES))
    assert result.terms.flatten().tolist() == pytest.approx([0.25, 4.0, 0.01])


def test_the_log_ratio_of_a_sample_is_that_of_its_path() -> None:
    ratios = normal(0, 3, 4)
    result = Sppo(eta=0.7)((ratios,), batch_of(RATES, num_decisions=4))
    assert_close(result.terms[:, 0], (ratios.sum(1) - 0.7 * (batch_of(RATES).scores - 0.5)).square())


def test_at_ratio_one_it_is_reinforce_on_win_rates_less_a_half() -> None:
    log_prob = normal(0, 3, 2).requires_grad_()
    centred = batch_of([rate - 0.5 for rate in RATES], num_decisions=2)
    got = step_gradient(Sppo(eta=3.0, path="mean"), (log_prob - log_prob.detach(),), batch_of(RATES, num_decisions=2))
    assert_close(got, 2 * 3.0 * step_gradient(Reinforce(), (log_prob,), centred))


def test_a_shift_of_all_log_ratios_costs_here_and_not_in_gvpo() -> None:
    best, shifted = ([2.0 * (rate - 0.5) + shift for rate in RATES] for shift in (0.0, 0.3))
    batch = batch_of(RATES)
    assert step_loss(Sppo(eta=2.0), (column(best),), batch).item() == pytest.approx(0)
    assert step_loss(Sppo(eta=2.0), (column(shifted),), batch).item() == pytest.approx(0.09)
    assert step_loss(Gvpo(beta=0.5), (column(shifted),), batch).item() == pytest.approx(0)


def test_it_is_measured_against_the_weights_that_sampled() -> None:
    assert Sppo().needs == {"old"}
    with pytest.raises(ValueError, match=r"eta must be above 0, got 0\.0"):
        Sppo(eta=0.0)
