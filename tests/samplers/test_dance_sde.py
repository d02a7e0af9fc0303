import math
from typing import Any

import pytest

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build


def test_the_defaults_are_those_of_the_paper(grid_policy: Any) -> None:
    """FLUX: 16 steps, one initial latent for 12 samples, 60% of the 15 random steps trained."""
    plan = build("samplers", {"name": "dance_sde", "num_steps": 16}).plan(grid_policy(), GroupKey(0, 0, 0), 12)
    assert (plan.roots, plan.steps[0].branch, plan.num_samples) == (1, 12, 12)
    assert sum(step.is_random for step in plan.steps) == 15
    assert sum(step.is_decision for step in plan.steps) == 9


def test_the_diffusion_is_constant(grid_policy: Any) -> None:
    plan = build("samplers", {"name": "dance_sde", "num_steps": 8}).plan(grid_policy(), GroupKey(0, 0, 0), 2)
    for step in plan.steps[:-1]:
        assert step.transition.std == pytest.approx(0.3 * math.sqrt(step.sigma - step.sigma_next))


def test_too_much_noise_for_a_small_sigma_is_refused(grid_policy: Any) -> None:
    sampler = build("samplers", {"name": "dance_sde", "num_steps": 3, "sigmas": [1, 0.5, 0.01, 0], "noise_level": 2.1})
    with pytest.raises(ConfigError, match=r"too much noise for the step from sigma 0\.5 to 0\.01"):
        sampler.plan(grid_policy(), GroupKey(0, 0, 0), 2)


def test_no_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match="noise_level must be above 0, got 0"):
        build("samplers", {"name": "dance_sde", "num_steps": 3, "noise_level": 0})
