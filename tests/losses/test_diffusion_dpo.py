"""Diffusion-DPO, Flow-DPO and SPIN: their identities, pairs, and the weights of the comparison.

The formulas: docs/maths/preference-losses.md#diffusion-dpo-and-flow-dpo
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.testing import assert_close

from mmrl.losses.diffusion_dpo import DiffusionDpo
from mmrl.losses.flow_dpo import FlowDpo
from mmrl.losses.spin import Spin
from tests.losses.denoisings import (
    GROUP,
    NOISE,
    NOISY,
    OLD,
    REFERENCE,
    SIGMA,
    TARGET,
    VELOCITY,
    batch,
    forward_outputs,
    gradient,
    matching,
    noise_matching,
    total,
)
from tests.parameters import in_one_test

SCORES = torch.tensor([1.0, -1.0, 0.2, 0.7], dtype=torch.float64)
PAIRS = ((0, 1), (3, 2))  # winner and loser of each group
LOSSES = {DiffusionDpo(beta=3.0, draws=2): noise_matching, FlowDpo(beta=3.0, draws=2): matching}


def margins(error: Any, velocity: Tensor, reference: Tensor = REFERENCE) -> Tensor:
    """Returns -beta / 2 ((l_w - l_w ref) - (l_l - l_l ref)) [2, K] of the pairs, beta 3."""
    gain = error(velocity) - error(reference)
    return torch.stack([-1.5 * (gain[winner] - gain[loser]) for winner, loser in PAIRS])


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_is_the_mean_over_pairs_and_draws(loss: Any) -> None:
    expected = -logsigmoid(margins(LOSSES[loss], VELOCITY)).mean()
    assert_close(total(loss, VELOCITY, batch(torch.zeros(4), SCORES)), expected)


@pytest.mark.parametrize("loss", LOSSES)
def test_at_the_reference_the_loss_is_log_2(loss: Any) -> None:
    of = batch(torch.zeros(4), SCORES)
    assert total(loss, REFERENCE, of).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("loss", LOSSES)
def test_swapping_winner_and_loser_flips_the_sign_of_the_argument(loss: Any) -> None:
    plain, swapped = (
        loss(loss.measure(forward_outputs(VELOCITY)), batch(torch.zeros(4), side * SCORES)) for side in (1, -1)
    )
    assert_close(swapped.metrics["margin"], -plain.metrics["margin"])
    assert_close(swapped.metrics["accuracy"], 1 - plain.metrics["accuracy"])
    assert plain.metrics["margin"].abs().min() > 1e-3
    assert_close(plain.metrics["chosen"] - plain.metrics["rejected"], plain.metrics["margin"])
    assert_close(swapped.metrics["chosen"], plain.metrics["rejected"])


def test_flow_dpo_is_diffusion_dpo_with_a_beta_for_each_level() -> None:
    """The error of the noise is (1 - sigma)^2 times that of the velocity."""
    assert_close(noise_matching(VELOCITY), (1 - SIGMA.view(4, 2)).square() * matching(VELOCITY))
    implied = NOISY + (1 - SIGMA).view(-1, 1, 1) * TARGET
    assert_close(implied, NOISE)


@pytest.mark.slow
def test_gradients_equal_finite_differences() -> None:
    loss, of = FlowDpo(beta=2.0, pairs="all", reference_weight=0.3, draws=2), batch(torch.zeros(4), SCORES)
    assert torch.autograd.gradcheck(lambda v: total(loss, v, of), (VELOCITY.clone().requires_grad_(),))


@pytest.mark.parametrize(
    ("pairs", "expected"), [("extremes", [(0, 3)]), ("all", [(0, 1), (0, 3), (2, 1), (2, 3), (1, 3)])]
)
def test_pairs_of_a_group_are_those_whose_scores_differ(pairs: Any, expected: list[tuple[int, int]]) -> None:
    """One group of four, two of which tie and are no pair; of `extremes` each that ties for a place has its pairs."""
    loss, scores = FlowDpo(beta=3.0, pairs=pairs, draws=2), torch.tensor([0.9, 0.4, 0.9, 0.1], dtype=torch.float64)
    of = batch(torch.zeros(4), scores)
    of = type(of)(of.advantages, of.weight, torch.zeros_like(GROUP), of.scores)
    expected = [*expected, *([(2, 3)] if pairs == "extremes" else [])]
    gain = matching(VELOCITY) - matching(REFERENCE)
    one_by_one = [-logsigmoid(-1.5 * (gain[winner] - gain[loser])) for winner, loser in expected]
    assert_close(total(loss, VELOCITY, of), torch.stack(one_by_one).mean())


def test_equal_scores_and_samples_that_take_no_part_make_no_pair() -> None:
    loss, weight = FlowDpo(draws=2), torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    _, denominator = loss.coefficients(batch(torch.zeros(4), torch.full((4,), 0.5)))
    assert denominator == 0
    coefficients, denominator = loss.coefficients(batch(torch.zeros(4), SCORES, weight))
    assert denominator == 1 and coefficients.tolist() == [[1, 0], [0, 0], [0, 0], [0, 0]]


def test_losers_take_part_in_the_gradient_and_in_the_penalty() -> None:
    of = batch(torch.zeros(4), SCORES)
    plain = gradient(FlowDpo(beta=3.0, draws=2), VELOCITY, of)
    pulled = gradient(FlowDpo(beta=3.0, draws=2, reference_weight=0.5), VELOCITY, of)
    assert (plain.abs().amax((1, 2)) > 0).all()
    assert_close(pulled - plain, 0.5 * 2 * (VELOCITY - REFERENCE) / 6 / 8)


def test_an_online_reference_is_the_policy_of_some_iterations_ago() -> None:
    loss = FlowDpo(beta=3.0, refresh_every=3, draws=2)
    assert loss.needs == {"old"} and FlowDpo().needs == {"reference"}
    assert [loss.old_decay(iteration) for iteration in range(6)] == [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    assert FlowDpo().old_decay(0) is None
    expected = -logsigmoid(margins(matching, VELOCITY, OLD)).mean()
    assert_close(total(loss, VELOCITY, batch(torch.zeros(4), SCORES)), expected)


def test_spin_is_diffusion_dpo_of_given_images_against_those_of_the_opponent() -> None:
    """Of each group one image is given (score 1) and the others are the old policy's (score 0)."""
    labels = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    of = batch(torch.zeros(4), labels)
    online = DiffusionDpo(beta=3.0, pairs="all", refresh_every=50, draws=2)
    assert_close(total(Spin(beta=3.0, draws=2), VELOCITY, of), total(online, VELOCITY, of))
    gain = noise_matching(VELOCITY) - noise_matching(OLD)
    expected = -logsigmoid(torch.stack([-1.5 * (gain[0] - gain[1]), -1.5 * (gain[3] - gain[2])])).mean()
    assert_close(total(Spin(beta=3.0, draws=2), VELOCITY, of), expected)


@in_one_test(
    ("cls", "settings", "message"),
    [
        (DiffusionDpo, {"beta": 0.0}, "beta must be above 0"),
        (DiffusionDpo, {"pairs": "best"}, "pairs must be one of all, extremes, adjacent"),
        (FlowDpo, {"refresh_every": 0}, "refresh_every must be at least 1, or null, got 0"),
        (Spin, {"refresh_every": None}, "without it this is 'diffusion_dpo'"),
    ],
)
def test_settings_out_of_range_are_refused(cls: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**settings)
