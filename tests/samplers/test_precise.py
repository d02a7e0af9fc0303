from typing import Any

import pytest

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build


def test_from_pure_noise_all_noise_is_drawn_anew(grid_policy: Any) -> None:
    first = build("samplers", {"name": "precise", "num_steps": 10}).plan(grid_policy(), GroupKey(0, 0, 0), 1).steps[0]
    assert (first.sigma, first.transition.std) == (1.0, first.sigma_next)


def test_a_step_by_hand() -> None:
    """sigma 1/2 -> 1/3: R = (1/3 * 1/2) / (1/2 * 2/3) = 1/2, so std = 1/3 sqrt(1 - (1/2)^2.25) at noise level 1.5."""
    sampler = build("samplers", {"name": "precise", "num_steps": 3, "sigmas": [1, 1 / 2, 1 / 3, 0]})
    step = sampler.plan(None, GroupKey(0, 0, 0), 1).steps[1]
    assert step.transition.std == pytest.approx(0.2962311, abs=1e-6)


def test_no_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match="noise_level must be above 0, got 0"):
        build("samplers", {"name": "precise", "num_steps": 3, "noise_level": 0})
