import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.samplers.base.kernels import bridge, ddim_correlation


@pytest.mark.parametrize("eta", [0.5, 1.0])
def test_the_std_is_ddims(eta: float, grid_policy: Any) -> None:
    """eta sigma' sqrt(1 - (alpha^2 / sigma^2) (sigma'^2 / alpha'^2)), eq. 16 of DDIM with alpha = 1 - sigma."""
    sampler = build("samplers", {"name": "ddim", "num_steps": 10, "eta": eta})
    for step in sampler.plan(grid_policy(), GroupKey(0, 0, 0), 1).steps[:-1]:
        snr, snr_next = ((1 - sigma) ** 2 / sigma**2 for sigma in (step.sigma, step.sigma_next))
        assert step.transition.std == pytest.approx(eta * step.sigma_next * math.sqrt(1 - snr / snr_next))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    share=st.floats(1e-4, 0.99), rise=st.floats(1e-3, 1.0), eta=st.floats(0.01, 1.0)
)  # share: alpha bar; rise: how much of the rest the step gains
def test_in_the_scale_of_constant_variance_the_std_is_ddpos(share: float, rise: float, eta: float) -> None:
    """s = eta sqrt((1 - a') / (1 - a)) sqrt(1 - a / a') for alpha bars a < a' (Black et al. 2023, DDPO)."""
    share_next = share + rise * (1 - share)
    ends = [(math.sqrt(a), math.sqrt(max(0.0, 1 - a))) for a in (share, share_next)]
    sigma, sigma_next = (s / (alpha + s) for alpha, s in ends)
    std = bridge(sigma, sigma_next, ddim_correlation(sigma, sigma_next, eta)).std * sum(ends[1])
    spread = (1 - share_next) / (1 - share) * (1 - share / share_next)
    assert std == pytest.approx(eta * math.sqrt(max(0.0, spread)), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("eta", [0, 1.01])
def test_etas_outside_the_range_are_refused(eta: float) -> None:
    with pytest.raises(ConfigError, match="eta must be above 0 and at most 1"):
        build("samplers", {"name": "ddim", "num_steps": 10, "eta": eta})
