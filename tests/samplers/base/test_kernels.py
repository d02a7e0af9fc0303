"""Both kernel families against published formulas, autograd and quadrature."""

import math

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from mmrl.plans.flow import Transition
from mmrl.samplers.base.kernels import (
    bridge,
    cps_correlation,
    ddim_correlation,
    euler_maruyama,
    flow_sde_diffusion,
    noise_decay,
    ode,
    precise_correlation,
)
from tests.parameters import in_one_test

LEVELS = [(1.0, 0.96), (0.9, 0.5), (0.5, 0.45), (0.3, 0.02), (0.1, 0.0)]
INNER = LEVELS[1:4]  # neither from pure noise nor to clean data


def latents_and_velocity() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    latents, velocity = torch.randn(2, 5, 3, generator=generator).double()
    return latents, velocity


def numbers(transition: Transition) -> tuple[float, float, float]:
    return transition.state, transition.velocity, transition.std


@in_one_test(("sigma", "sigma_next"), LEVELS)
def test_without_noise_every_kernel_is_the_euler_step(sigma: float, sigma_next: float) -> None:
    euler = (1.0, sigma_next - sigma, 0.0)
    for transition in (
        ode(sigma, sigma_next),
        euler_maruyama(sigma, sigma_next, 0.0),
        euler_maruyama(sigma, sigma_next, flow_sde_diffusion(sigma, 0.9, 0.0)),
        bridge(sigma, sigma_next, 1.0),
        bridge(sigma, sigma_next, cps_correlation(0.0)),
        bridge(sigma, sigma_next, ddim_correlation(sigma, sigma_next, 0.0)),
        bridge(sigma, sigma_next, precise_correlation(sigma, sigma_next, 0.0)),
    ):
        assert numbers(transition) == pytest.approx(euler, abs=1e-12)


@in_one_test(("sigma", "sigma_next"), LEVELS)
def test_euler_maruyama_is_the_two_line_form_of_dancegrpo(sigma: float, sigma_next: float) -> None:
    x, v = latents_and_velocity()
    g, delta = 0.3, sigma_next - sigma
    clean = x - sigma * v
    score = -(x - clean * (1 - sigma)) / sigma**2
    expected = x + delta * v + (-0.5 * g**2 * score) * delta

    step = euler_maruyama(sigma, sigma_next, g)
    torch.testing.assert_close(step.mean(x, v), expected, rtol=0, atol=1e-12)
    assert step.std == pytest.approx(g * math.sqrt(-delta), abs=1e-15)


@pytest.mark.parametrize(("sigma", "sigma_next"), LEVELS)
@pytest.mark.parametrize("correlation", [0.0, 0.4, 1.0])
def test_the_bridge_mixes_predicted_clean_and_noise(sigma: float, sigma_next: float, correlation: float) -> None:
    """A network may predict v, the noise or the clean latent: the mean is the same."""
    x, v = latents_and_velocity()
    noise = x + (1 - sigma) * v
    clean = x - sigma * v
    torch.testing.assert_close(noise - clean, v)
    torch.testing.assert_close((1 - sigma) * clean + sigma * noise, x)

    step = bridge(sigma, sigma_next, correlation)
    expected = (1 - sigma_next) * clean + sigma_next * correlation * noise
    torch.testing.assert_close(step.mean(x, v), expected, rtol=0, atol=1e-12)
    assert step.std**2 + (sigma_next * correlation) ** 2 == pytest.approx(sigma_next**2)


@in_one_test(("sigma", "sigma_next"), LEVELS)
def test_the_mean_answers_to_the_velocity_as_the_formula_says(sigma: float, sigma_next: float) -> None:
    x, v = latents_and_velocity()
    h, g, r = sigma - sigma_next, 0.4, 0.7
    for step, expected in (
        (euler_maruyama(sigma, sigma_next, g), h + g**2 * (1 - sigma) * h / (2 * sigma)),
        (bridge(sigma, sigma_next, r), abs(sigma * (1 - sigma_next) - sigma_next * r * (1 - sigma))),
    ):
        v.requires_grad_()
        (gradient,) = torch.autograd.grad(step.mean(x, v).sum(), v)
        torch.testing.assert_close(gradient.abs(), torch.full_like(v, expected), rtol=0, atol=1e-12)


@in_one_test(("sigma", "sigma_next"), LEVELS)
def test_precise_of_sqrt_2_is_ancestral_ddim_is_first_order_sde_dpm_solver(sigma: float, sigma_next: float) -> None:
    x, v = latents_and_velocity()
    precise = bridge(sigma, sigma_next, precise_correlation(sigma, sigma_next, math.sqrt(2)))
    ddim = bridge(sigma, sigma_next, ddim_correlation(sigma, sigma_next, 1.0))
    assert numbers(precise) == pytest.approx(numbers(ddim), abs=1e-12)

    # DPM-Solver++ (Lu et al. 2022, arXiv 2211.01095), SDE, order 1; exp(-h) of its log-SNR step
    decay = 0.0 if sigma == 1 else sigma_next / (1 - sigma_next) * (1 - sigma) / sigma
    clean = x - sigma * v
    mean = sigma_next / sigma * decay * x + (1 - sigma_next) * (1 - decay**2) * clean
    torch.testing.assert_close(ddim.mean(x, v), mean, rtol=0, atol=1e-12)
    assert ddim.std == pytest.approx(sigma_next * math.sqrt(1 - decay**2), abs=1e-12)


@pytest.mark.parametrize("noise_level", [0.3, 0.7, 1.5])
@pytest.mark.parametrize(("sigma", "sigma_next"), INNER)
def test_precise_integrates_the_sde_of_flow_grpo(sigma: float, sigma_next: float, noise_level: float) -> None:
    def rate(u: float) -> float:
        return (noise_level**2 * u / (1 - u)) / u**2  # g(u)^2 / u^2

    integral, _ = quad(rate, sigma_next, sigma)
    assert precise_correlation(sigma, sigma_next, noise_level) == pytest.approx(math.exp(-0.5 * integral), rel=1e-8)


def test_precise_and_flow_sde_agree_for_small_steps() -> None:
    ratios = []
    for h in (0.1, 0.01, 0.001):
        precise = bridge(0.6, 0.6 - h, precise_correlation(0.6, 0.6 - h, 0.7))
        ratios.append(precise.std / euler_maruyama(0.6, 0.6 - h, flow_sde_diffusion(0.6, 0.9, 0.7)).std)
    assert ratios == pytest.approx([0.783, 0.976, 0.998], abs=5e-4)


def test_the_bridge_from_pure_noise_draws_all_noise_anew() -> None:
    assert noise_decay(1.0, 0.9) == 0
    assert bridge(1.0, 0.9, precise_correlation(1.0, 0.9, 1.5)).std == pytest.approx(0.9)


def test_the_bridge_to_clean_data_adds_no_noise() -> None:
    assert bridge(0.25, 0.0, 0.3).std == 0


def test_a_correlation_of_zero_renoises_the_predicted_clean_latents() -> None:
    x, v = latents_and_velocity()
    torch.testing.assert_close(bridge(0.8, 0.6, 0.0).mean(x, v), 0.4 * (x - 0.8 * v))


def test_a_step_that_would_enlarge_the_latents_is_refused() -> None:
    """An unclamped g at the first level of a UniPC grid, shift 5 and 20 steps.

    docs/maths/traps.md#first-step-of-a-grid-that-starts-below-one
    """
    first, second = 0.9998, 0.98955
    unclamped = 0.7 * math.sqrt(first / (1 - first))
    with pytest.raises(ValueError, match=r"would multiply the latents by -11\.\d.*allowed: -1 to 1"):
        euler_maruyama(first, second, unclamped)
    assert euler_maruyama(first, second, flow_sde_diffusion(first, second, 0.7)).state == pytest.approx(0.76, abs=0.01)


def test_the_latents_may_be_flipped_at_the_first_step() -> None:
    """Noise level 1.5, which a published recipe uses: 1 - 1.5^2 / 2."""
    assert euler_maruyama(1.0, 0.9, flow_sde_diffusion(1.0, 0.9, 1.5)).state == pytest.approx(-0.125)
