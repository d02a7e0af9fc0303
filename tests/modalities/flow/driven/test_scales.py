"""Pipelines in another scale are a flow: states, levels and Euler's steps agree with those of their own scale."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.modalities.flow.driven.scales import ExplodingVariance, Rising, Scale, scale_of
from tests.parameters import in_one_test

CLEAN, NOISE = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).double().unbind()
LEVELS = torch.tensor([0.9, 0.5, 0.0], dtype=torch.float64)


def flow(sigma: Tensor) -> Tensor:
    return (1 - sigma)[:, None] * CLEAN + sigma[:, None] * NOISE


def own_state(scale: Scale, own: Tensor) -> Tensor:
    """A state by the pipeline's own definition."""
    if isinstance(scale, Rising):  # own: how much is clean
        return own[:, None] * CLEAN + (1 - own)[:, None] * NOISE
    return CLEAN + own[:, None] * NOISE


def own_output(scale: Scale) -> Tensor:
    """What the pipeline gives its scheduler where the network knows both ends."""
    return CLEAN - NOISE if isinstance(scale, Rising) else NOISE


@pytest.mark.parametrize("scale", [Rising(), ExplodingVariance(1, 80.0)])
def test_states_levels_and_velocities_are_those_of_a_flow(scale: Scale) -> None:
    own = scale.own_level(LEVELS)
    torch.testing.assert_close(scale.level(own), LEVELS)
    torch.testing.assert_close(scale.state(own_state(scale, own), LEVELS), flow(LEVELS))
    torch.testing.assert_close(scale.own_state(flow(LEVELS), LEVELS), own_state(scale, own))
    torch.testing.assert_close(scale.velocity(own_output(scale), flow(LEVELS), LEVELS), NOISE - CLEAN)


@pytest.mark.parametrize("scale", [Rising(), ExplodingVariance(1, 80.0)])
def test_a_step_of_euler_leads_to_the_same_state(scale: Scale) -> None:
    """For any output of the network, also one that is wrong."""
    sigma, following = torch.full((3,), 0.7).double(), torch.full((3,), 0.4).double()
    output = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).double()
    state = flow(sigma)
    stepped = state + (following - sigma)[:, None] * scale.velocity(output, state, sigma)
    own, next_own = scale.own_level(sigma), scale.own_level(following)
    own_stepped = scale.own_state(state, sigma) + (next_own - own)[:, None] * output
    torch.testing.assert_close(scale.own_state(stepped, following), own_stepped)


def test_first_states_are_the_pipelines_own() -> None:
    """Cosmos-Predict2 begins with 80 times the noise, at the level 80; Mochi with the noise, at 0."""
    sigma = torch.full((3,), 80 / 81, dtype=torch.float64)
    exploding = ExplodingVariance(1, 80.0)
    torch.testing.assert_close(exploding.own_state(exploding.first(NOISE, sigma), sigma), 80 * NOISE)
    torch.testing.assert_close(Rising().first(NOISE, torch.ones(3).double()), NOISE)


@in_one_test(
    ("settings", "expected"),
    [
        ({}, Scale()),
        ({"invert_sigmas": True}, Rising()),
        ({"sigma_max": 80.0, "final_sigmas_type": "sigma_min"}, ExplodingVariance(1, 80.0)),
        ({"sigma_max": 80.0}, ExplodingVariance(0, 80.0)),
    ],
)
def test_the_scale_follows_from_the_scheduler(settings: dict[str, Any], expected: Scale) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler: Any = FlowMatchEulerDiscreteScheduler()
    scheduler.register_to_config(**settings)
    assert scale_of(scheduler) == expected
