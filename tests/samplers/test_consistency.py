"""Few steps that estimate the clean latents and noise them anew."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from tests.parameters import in_one_test

KEY = GroupKey(0, 0, 0)


def make(**settings: Any) -> Any:
    return build("samplers", {"name": "consistency", **settings})


def test_a_step_noises_the_clean_estimate_anew() -> None:
    """x' = (1 - s') (x - s v) + s' z, which forgets the noise that was there."""
    sigmas = [0.98, 0.7, 0.35, 0.1, 0.0]
    plan = make(sigmas=sigmas).plan(None, KEY, 3)
    x, v, z = torch.randn(3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for step, (sigma, sigma_next) in zip(plan.steps, pairwise(sigmas), strict=True):
        found = step.transition.mean(x, v) + step.transition.std * z
        torch.testing.assert_close(found, (1 - sigma_next) * (x - sigma * v) + sigma_next * z)


@in_one_test("num_steps", [1, 2, 3, 4])
def test_every_step_but_the_last_is_a_decision(num_steps: int, grid_policy: Any) -> None:
    plan = make(num_steps=num_steps).plan(grid_policy(), KEY, 6)
    assert [step.is_decision for step in plan.steps] == [True] * (num_steps - 1) + [False]
    assert (plan.num_rollout_calls, plan.num_update_calls) == (6 * num_steps, 6 * (num_steps - 1))
    shared = make(num_steps=num_steps, share_noise=True).plan(grid_policy(), KEY, 6)
    calls = 6 if num_steps == 1 else 1 + 6 * (num_steps - 1)  # one step: each sample has its own latent
    assert (shared.num_samples, shared.num_rollout_calls) == (6, calls)


def test_it_is_cps_of_level_one(grid_policy: Any) -> None:
    """The share of the old noise that Flow-CPS keeps is cos(pi / 2) = 0."""
    cps = build("samplers", {"name": "cps", "num_steps": 4, "noise_level": 1.0}).plan(grid_policy(), KEY, 2)
    for own, other in zip(make().plan(grid_policy(), KEY, 2).steps, cps.steps, strict=True):
        for name in ("state", "velocity", "std"):
            assert getattr(own.transition, name) == pytest.approx(getattr(other.transition, name), abs=1e-12)


def test_a_grid_that_ends_above_zero_ends_without_noise() -> None:
    class Ends:
        def sigmas(self, kind: str, num_steps: int) -> list[float]:
            return [1.0, 0.5, 0.02]

    plan = make(num_steps=2).plan(Ends(), KEY, 1)
    assert plan.steps[-1].transition.std == 0 and plan.steps[-1].sigma_next == 0.02


def test_no_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_steps must be at least 1 and at most 10,000, got 0"):
        make(num_steps=0)
