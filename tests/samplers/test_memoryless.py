"""The memoryless sampler: its schedule, what it equals, and that it forgets."""

from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.plans.flow import Plan

STEPS = 8


def plan(policy: Any, name: str, **settings: Any) -> Plan:
    sampler = build("samplers", {"name": name, "num_steps": STEPS, "sigmas": "uniform"} | settings)
    found: Plan = sampler.plan(policy, GroupKey(0, 0, 0), 2)
    return found


@pytest.mark.parametrize("other", [{"name": "precise", "noise_level": 2**0.5}, {"name": "ddim", "eta": 1.0}])
def test_it_is_precise_of_sqrt_2_and_ancestral_ddim(grid_policy: Any, other: dict[str, Any]) -> None:
    for own, theirs in zip(plan(grid_policy(), "memoryless").steps, plan(grid_policy(), **other).steps, strict=True):
        numbers = [(m.state, m.velocity, m.std) for m in (own.transition, theirs.transition)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-7)


def test_its_euler_steps_have_the_noise_of_the_paper(grid_policy: Any) -> None:
    """sigma(t)^2 = 2 beta (beta alpha' / alpha - beta') with alpha = t, beta = 1 - t, by finite differences."""
    for step in plan(grid_policy(), "memoryless", kernel="euler").steps[1:-1]:
        t, d = 1 - step.sigma, 1e-6
        alpha_rate, beta_rate = ((t + d) - (t - d)) / (2 * d), ((1 - t - d) - (1 - t + d)) / (2 * d)
        eta = (1 - t) * (alpha_rate / t * (1 - t) - beta_rate)
        assert step.transition.std**2 / (step.sigma - step.sigma_next) == pytest.approx(2 * eta, rel=1e-6)
        # the drift of the paper for flow matching, 2 v - alpha' / alpha x, with its v = -velocity
        h = step.sigma - step.sigma_next
        assert step.transition.state == pytest.approx(1 - h / t, rel=1e-6)
        assert step.transition.velocity == pytest.approx(-2 * h, rel=1e-6)


@pytest.mark.parametrize(("name", "forgets"), [("memoryless", True), ("cps", False), ("ode", False)])
def test_a_sample_forgets_the_latents_it_began_with(grid_policy: Any, name: str, forgets: bool) -> None:
    """Gaussian data of spread 1/2, where v is linear: the sample's dependence on its first latents is a product."""
    kept = 1.0
    for step in plan(grid_policy(), name).steps:
        sigma = step.sigma
        slope = (sigma - (1 - sigma) / 4) / ((1 - sigma) ** 2 / 4 + sigma**2)
        kept *= step.transition.state + step.transition.velocity * slope
    assert (abs(kept) < 1e-9) == forgets


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(ConfigError, match="kernel"):
        build("samplers", {"name": "memoryless", "num_steps": 4, "kernel": "heun"})


def test_it_has_a_window_and_a_share_of_trained_steps_as_the_others(grid_policy: Any) -> None:
    found = plan(grid_policy(), "memoryless", train_fraction=0.5)
    assert sum(step.is_random for step in found.steps) == STEPS - 1
    assert sum(step.is_decision for step in found.steps) == 3
    assert torch.isfinite(torch.tensor([step.transition.std for step in found.steps])).all()
