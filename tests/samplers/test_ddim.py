import math
from typing import Any

import pytest

from mmrl.contracts import ConfigError
from mmrl.keys import GroupKey
from mmrl.plugins import build


@pytest.mark.parametrize("eta", [0.5, 1.0])
def test_the_std_is_ddims(eta: float, grid_policy: Any) -> None:
    """eta sigma' sqrt(1 - (alpha^2 / sigma^2) (sigma'^2 / alpha'^2)), eq. 16 of DDIM with alpha = 1 - sigma."""
    sampler = build("samplers", {"name": "ddim", "num_steps": 10, "eta": eta})
    for step in sampler.plan(grid_policy(), GroupKey(0, 0, 0), 1).steps[:-1]:
        snr, snr_next = ((1 - sigma) ** 2 / sigma**2 for sigma in (step.sigma, step.sigma_next))
        assert step.transition.std == pytest.approx(eta * step.sigma_next * math.sqrt(1 - snr / snr_next))


@pytest.mark.parametrize("eta", [0, 1.01])
def test_etas_outside_the_range_are_refused(eta: float) -> None:
    with pytest.raises(ConfigError, match="eta must be greater than 0 and at most 1"):
        build("samplers", {"name": "ddim", "num_steps": 10, "eta": eta})
