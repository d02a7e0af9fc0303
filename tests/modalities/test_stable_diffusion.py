"""Stable Diffusion 1, 2 and XL against their stock pipelines and schedulers."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.samplers.base.window import Window
from mmrl.samplers.ddim import DDIM
from mmrl.samplers.ode import ODE
from tests.diffusion_twins import (
    DIFFUSERS,
    KEY,
    KINDS,
    PREDICTIONS,
    SHAPE,
    policy_of,
    reader,
    step_noise,
    stock_images,
    twin,
    with_scheduler,
)
from tests.parameters import slow_but

STEPS = 5
ALL = Window(mode="range", last=STEPS)
NUMPY = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in diffusers' schedulers


def sample_images(policy: Any, sampler: Any, count: int = 2) -> Any:
    return policy.rollout([Prompt("a cat")], [sampler.plan(policy, KEY, count)], [KEY])


def images_of(policy: Any, sampler: Any) -> Tensor:
    images = sample_images(policy, sampler).outputs.images
    assert isinstance(images, Tensor)
    return images


@pytest.mark.slow
@pytest.mark.parametrize("guidance", [1.0, 5.0])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_ode_plan_draws_what_the_stock_pipeline_draws_with_ddim(
    kind: str, prediction: str, guidance: float, base: Path
) -> None:
    folder = with_scheduler(twin(kind, base), prediction_type=prediction)
    ours = images_of(reader(folder), ODE(num_steps=STEPS, guidance_scale=guidance))
    stock = stock_images(folder, num_inference_steps=STEPS, guidance_scale=guidance)
    torch.testing.assert_close(ours, stock, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "prediction", "eta"),
    [("stable_diffusion_xl", prediction, 1.0) for prediction in ("epsilon", "v_prediction")]
    + [("stable_diffusion", prediction, 1.0) for prediction in ("epsilon", "v_prediction")]
    + [("stable_diffusion", "sample", 0.4)],
)
def test_ddim_with_noise_draws_what_the_stock_pipeline_draws_its_last_step_included(
    kind: str, prediction: str, eta: float, base: Path
) -> None:
    folder = with_scheduler(twin(kind, base), prediction_type=prediction)
    sampler = DDIM(num_steps=STEPS, guidance_scale=3.0, eta=eta, window=ALL)
    ours = images_of(policy_of(folder, negative_prompt="blurry"), sampler)
    stock = stock_images(
        folder, step_noise(SHAPE, 2), num_inference_steps=STEPS, guidance_scale=3.0, eta=eta, negative_prompt="blurry"
    )
    torch.testing.assert_close(ours, stock, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_checkpoint_that_ends_clean_does_so_without_noise(base: Path) -> None:
    """Its final_alpha_cumprod, not the level of timestep 0 (docs/maths/traps.md#the-level-behind-the-last-step)."""
    folder = with_scheduler(twin(KINDS[0], base), set_alpha_to_one=True)
    policy = reader(folder)
    assert policy.sigmas("pipeline", STEPS)[-1] == 0
    ours = images_of(policy, DDIM(num_steps=STEPS))
    stock = stock_images(folder, step_noise(SHAPE, 2), num_inference_steps=STEPS, guidance_scale=1.0, eta=1.0)
    torch.testing.assert_close(ours, stock, atol=1e-4, rtol=0)
    with pytest.raises(ConfigError, match="the last step is never random"):
        DDIM(num_steps=STEPS, window=ALL).plan(policy, KEY, 2)


@pytest.mark.slow  # most of a second each, or more
@NUMPY
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_with_eulers_scheduler_is_drawn_as_its_own_pipeline_does(kind: str, base: Path) -> None:
    folder = with_scheduler(twin(kind, base), "EulerDiscreteScheduler")
    policy = reader(folder)
    assert policy.sigmas("pipeline", STEPS)[-1] == 0
    ours = images_of(policy, ODE(num_steps=STEPS, guidance_scale=5.0))
    stock = stock_images(folder, num_inference_steps=STEPS, guidance_scale=5.0)
    torch.testing.assert_close(ours, stock, atol=1e-4, rtol=0)


def vp(latents: Tensor, sigma: float) -> Tensor:
    scaled: Tensor = latents / ((1 - sigma) ** 2 + sigma**2) ** 0.5
    return scaled


@pytest.mark.parametrize("spacing", ["leading", "trailing"])
@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("eta", slow_but([0.0, 0.3, 1.0], 0.3))
def test_every_step_is_that_of_diffusers_ddim(eta: float, prediction: str, spacing: str, base: Path) -> None:
    policy = reader(with_scheduler(twin(KINDS[0], base), prediction_type=prediction, timestep_spacing=spacing))
    scheduler = DIFFUSERS.DDIMScheduler.from_config(policy._pipeline.scheduler.config)
    scheduler.set_timesteps(10)
    window = Window(mode="range", last=10)
    sampler: Any = DDIM(num_steps=10, eta=eta, window=window) if eta else ODE(num_steps=10)
    for timestep, step in zip(scheduler.timesteps, sampler.plan(policy, KEY, 1).steps, strict=True):
        latents, output, noise = torch.randn(3, 2, *SHAPE, generator=torch.Generator().manual_seed(int(timestep)))
        sigma = torch.full((2,), step.sigma)
        assert policy.schedule.timestep(sigma).tolist() == [timestep, timestep]
        theirs = scheduler.step(
            output, timestep, vp(latents, step.sigma), eta=eta, variance_noise=noise, return_dict=False
        )[0]
        velocity = policy.schedule.velocity(output, latents, sigma)
        ours = step.transition.mean(latents, velocity) + step.transition.std * noise
        torch.testing.assert_close(vp(ours, step.sigma_next), theirs, atol=1e-4, rtol=1e-5)


@pytest.mark.slow
@NUMPY
def test_ancestral_sampling_is_the_step_of_eulers_ancestral_scheduler(base: Path) -> None:
    """The same kernel between the same levels; its latents are y / alpha, and it ends at 0."""
    folder = with_scheduler(twin(KINDS[0], base), "EulerAncestralDiscreteScheduler", timestep_spacing="leading")
    policy = reader(folder)
    scheduler = policy._pipeline.scheduler
    scheduler.set_timesteps(STEPS)
    steps = DDIM(num_steps=STEPS).plan(policy, KEY, 1).steps
    for number, (timestep, step) in enumerate(zip(scheduler.timesteps, steps, strict=True)):
        latents, output = torch.randn(2, 2, *SHAPE, generator=torch.Generator().manual_seed(number))
        noise = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(99))
        sample = scheduler.step(
            output, timestep, latents / (1 - step.sigma), generator=torch.Generator().manual_seed(99)
        ).prev_sample
        velocity = policy.schedule.velocity(output, latents, torch.full((2,), step.sigma))
        ours = step.transition.mean(latents, velocity) + step.transition.std * noise
        torch.testing.assert_close(ours / (1 - step.sigma_next), sample, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
@pytest.mark.parametrize("num_steps", [2, 7, 30, 50])
def test_a_grid_has_the_levels_of_the_schedulers_timesteps(spacing: str, num_steps: int, base: Path) -> None:
    policy = reader(with_scheduler(twin(KINDS[0], base), timestep_spacing=spacing, set_alpha_to_one=True))
    scheduler = DIFFUSERS.DDIMScheduler.from_config(policy._pipeline.scheduler.config)
    scheduler.set_timesteps(num_steps)
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    share = (1 - betas).cumprod(0)[scheduler.timesteps]
    expected = (1 - share).sqrt() / (share.sqrt() + (1 - share).sqrt())
    grid = policy.sigmas("pipeline", num_steps)
    assert grid == pytest.approx([*expected.tolist(), 0.0], abs=1e-5)
    assert all(sigma > sigma_next for sigma, sigma_next in pairwise(grid))


@pytest.mark.parametrize("num_steps", [1, 3, 7, 40, 150, 999, 1000])
def test_the_uniform_grid_falls_from_the_noisiest_level_to_zero(num_steps: int, base: Path) -> None:
    policy = reader(twin(KINDS[0], base))
    grid = policy.sigmas("uniform", num_steps)
    assert len(grid) == num_steps + 1 and grid[-1] == 0
    assert grid[0] == float(policy.schedule.levels[-1]) == pytest.approx(0.93596, abs=1e-5)
    assert all(sigma > sigma_next for sigma, sigma_next in pairwise(grid))
    timesteps = policy.schedule.timestep(torch.tensor(grid[:-1]))
    even = torch.tensor([1000 * (1 - n / num_steps) - 1 for n in range(num_steps)])
    assert (timesteps - even).abs().max() <= 0.5 + 1e-6


@pytest.mark.slow
def test_a_last_step_that_would_not_move_is_refused(base: Path) -> None:
    policy = reader(with_scheduler(twin("stable_diffusion_xl", base), steps_offset=0))
    with pytest.raises(ConfigError, match="ends where its last step begins, at timestep 0; set steps_offset to 1"):
        policy.sigmas("pipeline", STEPS)


def test_a_grid_beyond_the_noisiest_level_is_refused(base: Path) -> None:
    with pytest.raises(ConfigError, match=r"must start at or below 0\.935958.*got 1"):
        images_of(reader(twin(KINDS[0], base)), ODE(num_steps=2, sigmas=(1.0, 0.5, 0.0)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prediction_type": "flow_prediction"}, "predicts 'flow_prediction'; supported are epsilon"),
        ({"thresholding": True}, "clips the clean latents"),
        ({"rescale_betas_zero_snr": True}, "rescale_betas_zero_snr needs v_prediction"),
    ],
)
def test_schedulers_that_no_flow_can_follow_are_refused(changes: dict[str, Any], message: str, base: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        policy_of(with_scheduler(twin(KINDS[0], base), **changes))


@pytest.mark.slow
def test_a_network_of_v_predictions_may_start_from_pure_noise(base: Path) -> None:
    changes: dict[str, Any] = {
        "rescale_betas_zero_snr": True,
        "prediction_type": "v_prediction",
        "timestep_spacing": "trailing",
    }
    folder = with_scheduler(twin(KINDS[0], base), **changes)
    policy = reader(folder)
    assert policy.sigmas("pipeline", STEPS)[0] == 1
    stock = stock_images(folder, num_inference_steps=STEPS, guidance_scale=1.0)
    torch.testing.assert_close(images_of(policy, ODE(num_steps=STEPS)), stock, atol=1e-4, rtol=0)
