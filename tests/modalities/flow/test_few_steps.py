"""Consistency models and solvers of order 2 on Stable Diffusion, against diffusers' own pipelines."""

from pathlib import Path

import pytest
import torch

from mmrl.core.data import Prompt
from mmrl.core.plugins import build
from tests.diffusion_twins import DIFFUSERS, KEY, GivenLCM, reader, step_noise, stock_images, twin, with_scheduler

NUMPY = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in diffusers' schedulers


@pytest.mark.slow
@NUMPY
@pytest.mark.parametrize("num_steps", [1, 4])
def test_consistency_draws_what_the_pipeline_of_an_lcm_draws(
    num_steps: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = with_scheduler(twin("stable_diffusion", tmp_path_factory.mktemp("lcm")), "LCMScheduler")
    policy = reader(folder)
    plan = build("samplers", {"name": "consistency", "num_steps": num_steps}).plan(policy, KEY, 2)
    own = policy.rollout([Prompt("a cat")], [plan], [KEY]).outputs.images
    noise = step_noise((4, 8, 8), 2)
    stock = stock_images(folder, noise, GivenLCM, num_inference_steps=num_steps, guidance_scale=1.0)
    torch.testing.assert_close(own, stock, rtol=0, atol=1e-4)


@pytest.mark.slow
@NUMPY
def test_dpm_solver_draws_what_the_pipeline_draws_with_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its log-SNR is that of the flow: the scale of the latents does not matter to it."""
    base = twin("stable_diffusion", tmp_path_factory.mktemp("dpm"))
    folder: Path = with_scheduler(base, "DPMSolverMultistepScheduler")
    policy = reader(folder)
    theirs = DIFFUSERS.DPMSolverMultistepScheduler.from_pretrained(folder / "scheduler")
    theirs.set_timesteps(6)
    sigmas = [*policy.schedule.levels[theirs.timesteps].tolist(), 0.0]
    sampler = build("samplers", {"name": "ode", "num_steps": 6, "sigmas": sigmas, "solver": "dpmpp_2m"})
    own = policy.rollout([Prompt("a cat")], [sampler.plan(policy, KEY, 2)], [KEY]).outputs.images
    stock = stock_images(folder, num_inference_steps=6, guidance_scale=1.0)
    torch.testing.assert_close(own, stock, rtol=0, atol=1e-3)
