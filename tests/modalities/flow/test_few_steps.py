"""Consistency models and solvers of order 2 on Stable Diffusion, against diffusers' own pipelines."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.core.keys import normal
from mmrl.core.plugins import build
from mmrl.modalities.tiny.stable_diffusion import write_tiny_stable_diffusion
from tests.diffusion_twins import (
    DIFFUSERS,
    KEY,
    GivenLCM,
    policy_of,
    reader,
    step_noise,
    stock_images,
    twin,
    with_scheduler,
)

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


def lcm_policy(base: Path, scale: float) -> Any:
    """The policy of a twin whose network takes the guidance scale, in a folder that names the pipeline of an LCM."""
    folder = base / "stable_diffusion-lcm"
    write_tiny_stable_diffusion(folder, 0, embeds_guidance=True)
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    index["_class_name"] = "LatentConsistencyModelPipeline"
    (folder / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    return policy_of(folder, embedded_guidance=scale)


@pytest.mark.slow
@NUMPY
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_a_network_that_takes_the_guidance_scale_draws_what_the_pipeline_of_an_lcm_draws(
    scale: float, tmp_path: Path
) -> None:
    policy = lcm_policy(tmp_path, scale)
    plan = build("samplers", {"name": "consistency", "num_steps": 4}).plan(policy, KEY, 2)
    own = policy.rollout([Prompt("a cat")], [plan], [KEY]).outputs.images
    stock = DIFFUSERS.LatentConsistencyModelPipeline.from_pretrained(policy.model, safety_checker=None)
    stock.scheduler = GivenLCM.from_config(stock.scheduler.config)
    stock.scheduler.noise = step_noise((4, 8, 8), 2)
    stock.set_progress_bar_config(disable=True)
    seen: list[Any] = []
    stock.unet.register_forward_pre_hook(lambda _, given, named: seen.append(named["timestep_cond"]), with_kwargs=True)
    latents = normal(KEY.seed_for("root"), (2, 4, 8, 8))
    shape = {"height": 32, "width": 32, "num_images_per_prompt": 2, "latents": latents}
    theirs = stock("a cat", num_inference_steps=4, guidance_scale=scale, output_type="pt", **shape).images
    torch.testing.assert_close(own, theirs, rtol=0, atol=1e-4)
    assert len(seen) == 4
    assert all(torch.equal(policy.guidance_embedding(2), each) for each in seen)  # bit for bit


@pytest.mark.slow
def test_guidance_is_an_input_where_the_network_takes_it_and_nowhere_else(tmp_path: Path) -> None:
    policy = lcm_policy(tmp_path, 8.0)
    plan = build("samplers", {"name": "consistency", "num_steps": 2}).plan(policy, KEY, 2)
    assert "guidance_scale=8.0" in policy.usage(Prompt("a cat"), plan, None).code
    twice = build("samplers", {"name": "consistency", "num_steps": 2, "guidance_scale": 3.0}).plan(policy, KEY, 2)
    with pytest.raises(ConfigError, match=r"sampler\.guidance_scale: must be 1 .* got 3"):
        policy.rollout([Prompt("a cat")], [twice], [KEY])
    with pytest.raises(ConfigError, match="takes the guidance scale as an input; set embedded_guidance"):
        policy_of(Path(policy.model))
    with pytest.raises(ConfigError, match="does not take the guidance scale as an input; leave it out"):
        policy_of(twin("stable_diffusion", tmp_path / "plain"), embedded_guidance=8.0)
