import math
from typing import Any

import pytest

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build


def test_the_std_is_a_fixed_share_of_the_next_sigma(grid_policy: Any) -> None:
    plan = build("samplers", {"name": "cps", "num_steps": 10}).plan(grid_policy(), GroupKey(0, 0, 0), 1)
    for step in plan.steps[:-1]:
        assert step.transition.std == pytest.approx(step.sigma_next * math.sin(0.8 * math.pi / 2))


@pytest.mark.parametrize("noise_level", [0, 1.01])
def test_noise_levels_outside_the_range_are_refused(noise_level: float) -> None:
    with pytest.raises(ConfigError, match="noise_level must be above 0 and at most 1"):
        build("samplers", {"name": "cps", "num_steps": 10, "noise_level": noise_level})
