"""The noise levels of Stable Diffusion 3 under each kind of shift that a scheduler may have."""

import math
from itertools import pairwise
from typing import Any

import diffusers
import pytest

FlowMatchEulerDiscreteScheduler: Any = diffusers.FlowMatchEulerDiscreteScheduler


def policy_with(twin_policy: Any, **settings: Any) -> Any:
    """The twin (16 image tokens) under a scheduler of these settings."""
    policy = twin_policy()
    policy._pipeline.scheduler = FlowMatchEulerDiscreteScheduler(**settings)
    return policy


def shifted(sigma: float, shift: float) -> float:
    """shift * s / (1 + (shift - 1) s): Esser et al. 2024, arXiv 2403.03206, eq. 23."""
    return shift * sigma / (1 + (shift - 1) * sigma)


@pytest.mark.slow
def test_a_shift_of_one_changes_nothing(twin_policy: Any) -> None:
    grid = policy_with(twin_policy, shift=1.0).sigmas("uniform", 8)
    assert grid == pytest.approx([1 - step / 8 for step in range(9)], abs=1e-6)


@pytest.mark.slow
def test_a_dynamic_shift_is_a_static_one_of_e_to_the_mu(twin_policy: Any) -> None:
    # FLUX's numbers: mu is 0.5 at 256 image tokens and 1.15 at 4096, and linear in between and beyond
    mu = 0.5 + (1.15 - 0.5) * (16 - 256) / (4096 - 256)
    ends = {"base_image_seq_len": 256, "max_image_seq_len": 4096, "base_shift": 0.5, "max_shift": 1.15}
    grid = policy_with(twin_policy, use_dynamic_shifting=True, **ends).sigmas("uniform", 8)
    assert grid == pytest.approx([shifted(1 - step / 8, math.exp(mu)) for step in range(9)], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipeline", "uniform"])
@pytest.mark.parametrize("settings", [{"shift": 1.0}, {"shift": 3.0}, {"use_dynamic_shifting": True}])
def test_every_grid_falls_strictly_from_one_to_zero(twin_policy: Any, settings: dict[str, Any], kind: str) -> None:
    policy = policy_with(twin_policy, **settings)
    for num_steps in (1, 2, 40):
        grid = policy.sigmas(kind, num_steps)
        assert len(grid) == num_steps + 1
        assert grid[0] == pytest.approx(1, abs=1e-6) and grid[-1] == 0
        assert all(sigma > sigma_next for sigma, sigma_next in pairwise(grid))
