"""DGPO: the group as one pair, and DPO's gradient at a group of two (docs/maths/denoising-losses.md#dgpo)."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.testing import assert_close

from mmrl.losses.dgpo import Dgpo
from mmrl.losses.flow_dpo import FlowDpo
from tests.losses.denoisings import AVERAGED, REFERENCE, VELOCITY, batch, forward_outputs, gradient, matching

PLAIN = Dgpo(beta=3.0, reference_weight=0.0, draws=2)
ADVANTAGES = torch.tensor([1.4, -0.6, -2.0, 0.5], dtype=torch.float64)


def test_with_two_samples_of_advantage_one_the_gradient_is_that_of_dpo_divided_by_beta() -> None:
    sides = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    group = gradient(PLAIN, VELOCITY, batch(sides))
    pairs = gradient(FlowDpo(beta=3.0, draws=2), VELOCITY, batch(sides))
    assert_close(group, pairs / 3.0)
    assert group.abs().max() > 1e-3


def test_terms_are_the_formula_one_entry_at_a_time() -> None:
    result = PLAIN(PLAIN.measure(forward_outputs(VELOCITY)), batch(ADVANTAGES))
    error, compared = matching(VELOCITY), matching(REFERENCE)
    for row in range(4):
        for column in range(2):
            members = (0, 1) if row < 2 else (2, 3)
            s = sum(float(ADVANTAGES[i]) * 3 * float(error[i, column] - compared[i, column]) for i in members) / 2
            expected = float(ADVANTAGES[row]) * float(error[row, column]) / (1 + math.exp(-s))
            assert result.terms[row, column].item() == pytest.approx(expected)


def test_its_gradient_is_that_of_minus_log_sigmoid_of_the_group_divided_by_beta() -> None:
    """Mean over groups of -log sigmoid(-s) has G times the gradient of the mean over samples, and beta / G in it."""

    def objective(velocity: Tensor) -> Tensor:
        gain = ADVANTAGES[:, None] * (matching(velocity) - matching(REFERENCE))
        preference = 3 * torch.stack([gain[:2].mean(0), gain[2:].mean(0)])
        return -logsigmoid(-preference).mean()

    velocity = VELOCITY.clone().requires_grad_()
    expected = torch.autograd.grad(objective(velocity), velocity)[0] / 3.0
    assert_close(gradient(PLAIN, VELOCITY, batch(ADVANTAGES)), expected)


def test_a_member_that_has_left_the_range_in_its_own_direction_has_no_gradient() -> None:
    loss = Dgpo(beta=3.0, reference_weight=0.0, clip=0.05, draws=2)
    ratio = (matching(AVERAGED) - matching(VELOCITY)).exp()
    leaves = torch.where(ADVANTAGES[:, None] > 0, ratio > 1.05, ratio < 0.95)
    assert leaves.any() and not leaves.all()
    plain, clipped = gradient(PLAIN, VELOCITY, batch(ADVANTAGES)), gradient(loss, VELOCITY, batch(ADVANTAGES))
    expected = plain * ~leaves.flatten().view(-1, 1, 1)
    assert_close(clipped, expected)
    result = loss(loss.measure(forward_outputs(VELOCITY)), batch(ADVANTAGES))
    assert_close(result.terms, PLAIN(PLAIN.measure(forward_outputs(VELOCITY)), batch(ADVANTAGES)).terms)
    assert_close(result.metrics["clip_fraction"], leaves.double())


def test_samples_that_take_no_part_are_not_of_the_group() -> None:
    weight = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    terms = PLAIN(PLAIN.measure(forward_outputs(VELOCITY)), batch(ADVANTAGES, weight=weight)).terms
    s = 1.4 * 3 * (matching(VELOCITY) - matching(REFERENCE))[0]
    assert_close(terms[0], s.sigmoid() * 1.4 * matching(VELOCITY)[0])


def test_the_reference_may_be_the_averaged_weights() -> None:
    assert Dgpo().needs == {"reference"} and Dgpo(clip=0.01).needs == {"reference", "averaged"}
    online = Dgpo(beta=3.0, reference_weight=0.0, compared_with="averaged", draws=2)
    assert online.needs == {"averaged"}
    error, compared, *_ = online.measure(forward_outputs(VELOCITY))
    assert_close(compared, matching(AVERAGED))
    assert_close(error, matching(VELOCITY))


def test_the_penalty_is_against_the_reference() -> None:
    pulled = gradient(Dgpo(beta=3.0, reference_weight=0.02, draws=2), VELOCITY, batch(ADVANTAGES))
    plain = gradient(PLAIN, VELOCITY, batch(ADVANTAGES))
    assert_close(pulled - plain, 0.02 * 2 * (VELOCITY - REFERENCE) / 6 / 8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 0.0}, "beta must be above 0"),
        ({"clip": 0.0}, "clip must be above 0"),
        ({"compared_with": "old"}, "compared_with must be one of reference, averaged"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dgpo(**settings)
