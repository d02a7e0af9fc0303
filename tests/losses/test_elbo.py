"""EPG, PEPG and PAR at q = 0, and away from it (docs/maths/denoising-losses.md#elbo-policy-gradients)."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.losses.base.old_decay import OldDecay
from mmrl.losses.elbo import Elbo
from tests.losses.denoisings import OLD, SIGMA, TARGET, VELOCITY, batch, forward_outputs, gradient, matching

ADVANTAGES = torch.tensor([1.0, -0.5, 2.0, -1.5], dtype=torch.float64)
FORMS: list[Any] = ["epg", "pepg", "par"]


@pytest.mark.parametrize("form", FORMS)
def test_at_the_old_weights_every_form_is_the_policy_gradient_of_the_bound(form: Any) -> None:
    """-A grad E, with E = -l: A d/dv mean (v - v*)^2 over the B K entries."""
    loss = Elbo(form=form, bound="velocity", draws=2)
    expected = ADVANTAGES.repeat_interleave(2).view(-1, 1, 1) * 2 * (VELOCITY - TARGET) / 6 / 8
    assert_close(gradient(loss, VELOCITY, batch(ADVANTAGES), old=VELOCITY), expected)


@pytest.mark.parametrize("form", FORMS)
def test_terms_are_the_formulas_one_entry_at_a_time(form: Any) -> None:
    loss = Elbo(form=form, bound="velocity", scale=2.0, draws=2)
    result = loss(loss.measure(forward_outputs(VELOCITY)), batch(ADVANTAGES))
    for row in range(4):
        for column in range(2):
            bound, old = (-float(matching(v)[row, column]) / 2 for v in (VELOCITY, OLD))
            a, q = float(ADVANTAGES[row]), bound - old
            expected = {
                "epg": -math.exp(q) * a * bound,
                "pepg": -math.exp(q) * (a - q) * bound,
                "par": math.exp(q) * (a - q) ** 2 / 2,
            }[form]
            assert result.terms[row, column].item() == pytest.approx(expected)


def test_pepg_and_par_have_the_same_gradient_everywhere() -> None:
    pepg, par = (Elbo(form=form, bound="clean", draws=2) for form in ("pepg", "par"))
    assert_close(gradient(pepg, VELOCITY, batch(ADVANTAGES)), gradient(par, VELOCITY, batch(ADVANTAGES)))


def test_what_multiplies_the_bound_has_no_gradient() -> None:
    """EPG: -A e^q grad E, e^q a number."""
    loss = Elbo(bound="velocity", draws=2)
    q = (matching(OLD) - matching(VELOCITY)).flatten().view(-1, 1, 1)
    weight = ADVANTAGES.repeat_interleave(2).view(-1, 1, 1) * q.exp()
    assert_close(gradient(loss, VELOCITY, batch(ADVANTAGES)), weight * 2 * (VELOCITY - TARGET) / 6 / 8)


def test_each_bound_is_its_error() -> None:
    error, t = matching(VELOCITY), SIGMA.view(4, 2)
    wrong = SIGMA.view(-1, 1, 1) * (VELOCITY - TARGET)
    adaptive = (wrong.square().mean((1, 2)) / wrong.abs().mean((1, 2))).view(4, 2)
    expected = {"velocity": error, "clean": t * t * error, "exact": (1 - t) / (t + 1e-3) * error, "adaptive": adaptive}
    for bound, values in expected.items():
        assert_close(Elbo(bound=bound, draws=2).measure(forward_outputs(VELOCITY))[0], -values)  # type: ignore[arg-type]


def test_old_are_the_weights_themselves_or_a_copy_that_follows() -> None:
    assert Elbo().old_decay(5) is None and Elbo().needs == {"old"}
    assert Elbo(decay=OldDecay(slope=0.0)).old_decay(5) == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"form": "ppo"}, "form must be one of epg, pepg, par"),
        ({"bound": "t"}, "bound must be one"),
        ({"scale": 0.0}, "scale"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Elbo(**settings)
