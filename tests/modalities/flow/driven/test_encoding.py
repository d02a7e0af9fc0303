"""Given images become clean states as the stock pipeline's own code would pack them, or are refused with the reason."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl import labs
from mmrl.commands.train import train
from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Outputs, Prompt
from mmrl.core.keys import GroupKey, normal
from mmrl.core.views import DenoisingView
from mmrl.modalities.diffusers_pipeline import DiffusersPipeline
from mmrl.modalities.flow.driven.latent_map import LatentMap, NoEncoding
from mmrl.modalities.tiny.pipelines.families import write_tiny_pipeline
from mmrl.run_directory.start import new_run
from tests.parameters import in_one_test
from tests.process_runs import metrics

CPU = torch.device("cpu")
FLUX = {"max_sequence_length": 48, "guidance_scale": 2.5}


def test_a_map_of_scaled_shifted_and_moved_elements_is_known_from_what_it_does() -> None:
    """2 x 2 pixels to a token, as FLUX packs; a factor and a shift for each channel, as Qwen-Image scales."""
    factor, shift = torch.tensor([0.5, -2.0, 1e-2]), torch.tensor([0.0, 3.0, -1.0])

    def latents_of(states: Tensor) -> Tensor:
        grid = states.view(-1, 2, 4, 3, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(-1, 3, 4, 8)
        return grid * factor[:, None, None] + shift[:, None, None]

    found = LatentMap.of(latents_of, (8, 12), CPU)
    assert found.latents == (3, 4, 8)
    states = normal(1, (5, 8, 12))
    torch.testing.assert_close(found.latents_of(states), latents_of(states))
    torch.testing.assert_close(found.states_of(latents_of(states)), states)


@in_one_test(
    ("latents_of", "message"),
    [
        (lambda states: states.cumsum(-1), "mixes the elements"),
        (lambda states: states + 0.1 * (states > 1.5) * (states < 1.6), "more to its state than to scale and shift"),
        (lambda states: states * torch.tensor([1.0, 0.0, 1.0, 1.0]), r"latents \[64, 4\] are not the elements of"),
        (lambda states: states[..., :3], r"latents \[64, 3\] are not the elements of its state \[64, 4\]"),
    ],
)
def test_what_is_no_such_map_is_refused(latents_of: Any, message: str) -> None:
    with pytest.raises(NoEncoding, match=message):
        LatentMap.of(latents_of, (64, 4), CPU)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Any]:
    """Makes the small pipeline of a family a driven policy."""
    made: list[DiffusersPipeline] = []

    def make(family: str) -> DiffusersPipeline:
        policy = DiffusersPipeline(model="", family=family).tiny(0, tmp_path / family)
        policy.prepare(Placement(CPU, torch.float32))
        made.append(policy)
        return policy

    yield make
    for policy in made:
        policy.close()


def flux_by_hand(pipeline: Any, images: Tensor) -> Tensor:
    """Latents of FLUX: shifted and scaled by its VAE's numbers, four neighbours to a token."""
    config = pipeline.vae.config
    mean = (pipeline.vae.encode(images * 2 - 1).latent_dist.mean - config.shift_factor) * config.scaling_factor
    packed: Tensor = pipeline._pack_latents(mean, *mean.shape)
    return packed


def qwen_by_hand(pipeline: Any, images: Tensor) -> Tensor:
    """Latents of Qwen-Image: its VAE is one of videos, with a mean and a deviation for each channel."""
    config = pipeline.vae.config
    mean = pipeline.vae.encode((images * 2 - 1)[:, :, None]).latent_dist.mean
    middle, deviation = (
        torch.tensor(values).view(1, -1, 1, 1, 1) for values in (config.latents_mean, config.latents_std)
    )
    scaled = ((mean - middle) / deviation)[:, :, 0]
    packed: Tensor = pipeline._pack_latents(scaled, *scaled.shape)
    return packed


@pytest.mark.slow  # 3 s: a small pipeline each
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "by_hand"), [("flux", flux_by_hand), ("qwen_image", qwen_by_hand)])
def test_given_images_are_the_states_that_the_vae_makes_by_hand(family: str, by_hand: Any, tiny: Any) -> None:
    policy = tiny(family)
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    keys = [GroupKey(0, 0, n) for n in range(2)]
    rollout = policy.offline([Prompt("a cat"), Prompt("a dog")], Outputs(images=images), keys)
    with torch.no_grad():
        clean = by_hand(policy._pipeline, images)
    torch.testing.assert_close(rollout.trace.clean, clean, atol=1e-5, rtol=1e-5)
    view = DenoisingView(torch.tensor([1, 0]), torch.tensor([0, 0]), torch.tensor([0.2, 0.5]), (5, 6), 1)
    with torch.no_grad():
        seen = policy.forward(rollout, view)
    noise = torch.stack([normal(seed, policy.latent_shape) for seed in (5, 6)])
    level = torch.tensor([0.2, 0.5])[:, None, None]
    torch.testing.assert_close(seen.noisy, (1 - level) * clean[[1, 0]] + level * noise, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen.target, noise - clean[[1, 0]], atol=1e-5, rtol=1e-5)


@pytest.mark.slow  # 3 s: a lab's pipeline
def test_pictures_of_a_trained_vae_come_back() -> None:
    """Two pictures that the pipeline itself makes, by a VAE that was trained on such pictures."""
    from mmrl.prompts.stream import load_prompts
    from mmrl.samplers.ode import ODE

    arguments = {"max_area": 1024, "_auto_resize": False, "max_sequence_length": 5}
    policy = DiffusersPipeline(
        model=str(labs.checkpoint("edits")), height=32, width=32, condition_images=1, arguments=arguments, replay=False
    )
    policy.prepare(Placement(CPU, torch.float32))
    prompts, key = load_prompts("lab:edits/held_out")[:1], GroupKey(0, 0, 0)
    made = policy.rollout(prompts, [ODE(num_steps=2).plan(policy, key, 2)], [key]).outputs.images
    assert made is not None
    number = policy.driven.numbers(prompts)
    with torch.no_grad():
        again = policy.driven.pixels(policy.encode_images(made), number * 2)
    policy.close()
    assert (again - made).abs().mean() < 0.01


@pytest.mark.slow  # 3 s: a small pipeline
@pytest.mark.filterwarnings("ignore")
def test_given_clips_are_the_states_that_the_vae_makes_by_hand(tiny: Any) -> None:
    """The VAE of Wan has a mean and a deviation for each channel; frames in the order of time."""
    policy = tiny("wan21")
    videos = torch.rand(2, policy.num_frames, 3, policy.height, policy.width)
    config = policy._pipeline.vae.config
    middle, deviation = (
        torch.tensor(values).view(1, -1, 1, 1, 1) for values in (config.latents_mean, config.latents_std)
    )
    with torch.no_grad():
        mean = policy._pipeline.vae.encode((videos * 2 - 1).transpose(1, 2)).latent_dist.mean
        found = policy.encode_videos(videos)
    torch.testing.assert_close(found, (mean - middle) / deviation, atol=1e-5, rtol=1e-5)
    keys = [GroupKey(0, 0, n) for n in range(2)]
    rollout = policy.offline([Prompt("a cat"), Prompt("a dog")], Outputs(videos=videos, fps=(16.0,) * 2), keys)
    torch.testing.assert_close(rollout.trace.clean, found)
    with pytest.raises(ConfigError, match="cannot train on given videos: its VAE encodes clips to"):
        policy.encode_videos(videos[:, :1])


@pytest.mark.slow  # 5 s: a small pipeline, and a run
@pytest.mark.filterwarnings("ignore")
def test_a_run_trains_a_driven_pipeline_on_the_images_of_its_data(tmp_path: Path) -> None:
    write_tiny_pipeline("flux", tmp_path / "flux", 0)
    given = f"{{max_sequence_length: {FLUX['max_sequence_length']}, guidance_scale: {FLUX['guidance_scale']}}}"
    modality = f"{{name: diffusers_pipeline, model: {tmp_path / 'flux'}, height: 32, width: 32, arguments: {given}}}"
    small = ["iterations=1", "prompts_per_iteration=2", "evaluation=null", f"modality={modality}"]
    train(*new_run("lab/sft", small, tmp_path / "run"))
    (line,) = metrics(tmp_path / "run")
    assert line["calls/rollout"] == 0 and line["calls/update"] == 2 * 4  # four noise samples of each image
    assert line["optimizer/grad_norm"] > 0
