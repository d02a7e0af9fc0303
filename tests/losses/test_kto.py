"""Diffusion-KTO: its utilities, its point of reference, and the liked images."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.losses.kto import Kto
from tests.losses.denoisings import REFERENCE, VELOCITY, batch, forward_outputs, gradient, noise_matching

SIDES = torch.tensor([0.7, -1.0, 0.0, 2.0], dtype=torch.float64)
GAIN = noise_matching(REFERENCE) - noise_matching(VELOCITY)
POINT = [max(0.0, float(GAIN[rows].mean())) for rows in (slice(0, 2), slice(2, 4))]


@pytest.mark.parametrize("utility", ["kahneman_tversky", "loss_averse", "risk_seeking"])
def test_terms_are_the_formula_one_entry_at_a_time(utility: Any) -> None:
    loss = Kto(beta=2.0, utility=utility, liked_weight=1.5, disliked_weight=0.8, draws=2)
    terms = loss(loss.measure(forward_outputs(VELOCITY)), batch(SIDES)).terms
    for row in (0, 1, 3):
        for column in range(2):
            side = 1.0 if SIDES[row] > 0 else -1.0
            felt = side * 2.0 * (float(GAIN[row, column]) - POINT[row // 2])
            sigmoid = 1 / (1 + math.exp(-felt))
            value = {
                "kahneman_tversky": sigmoid,
                "loss_averse": math.log(sigmoid),
                "risk_seeking": -math.log(1 - sigmoid),
            }[utility]
            assert terms[row, column].item() == pytest.approx(-(1.5 if side > 0 else 0.8) * value)


def test_the_point_of_reference_has_no_gradient_and_is_never_below_zero() -> None:
    loss, beta = Kto(beta=2.0, draws=2), 2.0
    velocity = VELOCITY.clone().requires_grad_()
    gain = noise_matching(REFERENCE) - noise_matching(velocity)
    point = torch.tensor(POINT).double().repeat_interleave(2)[:, None]
    felt = SIDES.sign()[:, None] * beta * (gain - point)
    objective = -felt.sigmoid()[torch.tensor([0, 1, 3])].sum() / 6
    assert_close(gradient(loss, VELOCITY, batch(SIDES)), torch.autograd.grad(objective, velocity)[0])
    assert min(POINT) == 0.0 < max(POINT)


def test_at_the_reference_liked_ones_are_pulled_and_others_pushed_alike() -> None:
    """sigmoid' (0) = 1/4: -beta / 4 grad g for liked, + for disliked."""
    one = gradient(Kto(beta=2.0, draws=2), REFERENCE, batch(torch.tensor([1.0, 1.0, 1.0, 1.0]).double()))
    other = gradient(Kto(beta=2.0, draws=2), REFERENCE, batch(torch.tensor([-1.0, -1.0, -1.0, -1.0]).double()))
    assert_close(one, -other)
    assert one.abs().max() > 1e-3


def test_a_sample_that_is_neither_liked_nor_not_counts_nothing() -> None:
    coefficients, denominator = Kto(draws=2).coefficients(batch(SIDES))
    assert coefficients.tolist() == [[1, 1], [1, 1], [0, 0], [1, 1]] and denominator == 6


def test_a_threshold_reads_scores_in_place_of_advantages() -> None:
    loss, scores = Kto(beta=2.0, threshold=0.5, draws=2), torch.tensor([0.0, 1.0, 0.5, 0.9], dtype=torch.float64)
    by_score = loss(loss.measure(forward_outputs(VELOCITY)), batch(SIDES, scores)).terms
    sides = torch.tensor([-1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    by_side = Kto(beta=2.0, draws=2)
    assert_close(by_score, by_side(by_side.measure(forward_outputs(VELOCITY)), batch(sides)).terms)
    assert loss.coefficients(batch(SIDES, scores))[1] == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 0.0}, "beta must be above 0"),
        ({"liked_weight": 0.0}, "liked_weight must be above 0"),
        ({"utility": "sigmoid"}, "utility must be one of kahneman_tversky"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Kto(**settings)
