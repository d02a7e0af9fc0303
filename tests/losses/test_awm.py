"""Its gradient at ratio 1, its weightings, its clip (docs/maths/denoising-losses.md#advantage-weighted-matching)."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.losses.awm import Awm
from mmrl.losses.base.old_decay import OldDecay
from tests.losses.denoisings import OLD, SIGMA, TARGET, VELOCITY, batch, forward_outputs, gradient, matching, total
from tests.parameters import in_one_test

PLAIN = Awm(weighting="l", sigmas="uniform", advantage_max=1e6, draws=2)
ADVANTAGES = torch.tensor([1.0, -0.5, 2.0, -1.5], dtype=torch.float64)


def test_at_ratio_one_the_gradient_is_the_advantage_times_the_supervised_one() -> None:
    """w = l: A / advantage_max of d/dv mean (v - v*)^2, over the B K entries."""
    supervised = 2 * (VELOCITY - TARGET) / 6
    weight = (ADVANTAGES / 1e6)[:, None].expand(4, 2).reshape(-1, 1, 1) / 8
    assert_close(gradient(PLAIN, VELOCITY, batch(ADVANTAGES), old=VELOCITY), weight * supervised)


def test_both_forms_of_the_ratio_have_the_same_gradient_at_one() -> None:
    exp_first, sum_first = (Awm(ratio=form, sigmas="uniform", draws=2) for form in ("exp_first", "sum_first"))
    of = batch(ADVANTAGES)
    assert_close(gradient(exp_first, VELOCITY, of, old=VELOCITY), gradient(sum_first, VELOCITY, of, old=VELOCITY))
    assert (exp_first.scope, sum_first.scope) == ("decision", "path")


@in_one_test("weighting", ["l", "t_l", "t2_l", "huber", "ghuber"])
def test_each_weighting_is_its_formula(weighting: Any) -> None:
    loss = Awm(weighting=weighting, draws=2)
    measured, old, *_ = loss.measure(forward_outputs(VELOCITY))
    for values, errors in ((measured, matching(VELOCITY)), (old, matching(OLD))):
        for n, (value, error, t) in enumerate(zip(values.flatten(), errors.flatten(), SIGMA, strict=True)):
            expected = {
                "l": error,
                "t_l": t * error,
                "t2_l": t * t * error,
                "huber": t * (math.sqrt(error + 1e-10) - 1e-5),
                "ghuber": t * ((error + 1e-10) ** 0.25 - 1e-10**0.25) / 0.25,
            }[weighting]
            assert float(value) == pytest.approx(float(expected)), n


@pytest.mark.parametrize("form", ["exp_first", "sum_first"])
def test_terms_are_the_clipped_surrogate_one_entry_at_a_time(form: Any) -> None:
    loss = Awm(weighting="l", ratio=form, clip=0.2, advantage_max=1.6, draws=2)
    result = loss(loss.measure(forward_outputs(VELOCITY)), batch(ADVANTAGES))
    gain = matching(OLD) - matching(VELOCITY)
    for row in range(4):
        advantage = max(-1.6, min(1.6, float(ADVANTAGES[row]))) / 1.6
        for column in range(2):
            log_ratio = float(gain[row, column]) if form == "exp_first" else float(gain[row].mean())
            ratio = math.exp(log_ratio)
            expected = max(-advantage * ratio, -advantage * min(max(ratio, 0.8), 1.2))
            assert result.terms[row, column].item() == pytest.approx(expected)
            assert result.metrics["clip_fraction"][row, column].item() == float(abs(ratio - 1) > 0.2)


def test_draws_that_take_no_part_are_not_in_the_ratio_of_a_sample() -> None:
    loss = Awm(weighting="l", ratio="sum_first", draws=2)
    weight = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    terms = loss(loss.measure(forward_outputs(VELOCITY)), batch(ADVANTAGES, weight=weight)).terms
    ratio = float((matching(OLD) - matching(VELOCITY))[0, 0].exp())
    assert terms[0, 0].item() == pytest.approx(max(-0.2 * ratio, -0.2 * min(max(ratio, 0.0), 2.0)))
    assert terms.isfinite().all()


@pytest.mark.slow
def test_gradients_equal_finite_differences() -> None:
    loss = Awm(clip=5.0, reference_weight=0.1, averaged_weight=0.2, draws=2)
    assert torch.autograd.gradcheck(lambda v: total(loss, v, batch(ADVANTAGES)), (VELOCITY.clone().requires_grad_(),))


def test_old_are_the_weights_themselves_or_a_copy_that_follows() -> None:
    assert Awm().old_decay(5) is None and "old" in Awm().needs
    assert Awm(decay=OldDecay(slope=0.0)).old_decay(5) == 0.0
    assert Awm(decay=OldDecay(maximum=0.3)).old_decay(99) == pytest.approx(0.1)
    assert Awm(averaged_weight=1.0).needs == {"old", "averaged"}


@in_one_test(
    ("settings", "message"),
    [
        ({"clip": 0.0}, "clip must be above 0"),
        ({"power": -1.0}, "power must be above 0"),
        ({"advantage_max": 0.0}, "advantage_max must be above 0"),
        ({"weighting": "t"}, "weighting must be one of l, t_l, t2_l, huber, ghuber"),
        ({"ratio": "first"}, "ratio must be one of exp_first, sum_first"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Awm(**settings)
