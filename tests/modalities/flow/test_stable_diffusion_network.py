"""The network of Stable Diffusion 1, 2 and XL: what it is given and learns, and how it is exported and refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Outputs, Prompt
from mmrl.core.keys import GroupKey, normal
from mmrl.core.plugins import build
from mmrl.core.views import DenoisingView
from mmrl.losses.diffusion_dpo import DiffusionDpo
from mmrl.modalities.loading.lora import Lora
from tests.diffusion_twins import KINDS, PREDICTIONS, SHAPE, policy_of, twin, with_scheduler


class Recording(torch.nn.Module):
    """In place of the network: notes what it is given, and answers what it is told to."""

    def __init__(self, network: Any, answer: Any) -> None:
        super().__init__()
        self.config, self.answer, self.seen = network.config, answer, list[dict[str, Any]]()

    def forward(self, **given: Any) -> tuple[Tensor]:
        self.seen.append(given)
        return (self.answer(**given),)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_network_sees_latents_of_variance_1_and_the_nearest_integer_timestep(kind: str, base: Path) -> None:
    policy = policy_of(twin(kind, base))
    policy._pipeline.unet = network = Recording(policy._pipeline.unet, lambda sample, **rest: sample)
    levels = policy.schedule.levels
    between = [float(0.7 * levels[300] + 0.3 * levels[301]), float(0.3 * levels[300] + 0.7 * levels[301])]
    sigma = torch.tensor([float(levels[-1]), float(levels[0]), *between, 0.999, 1e-4])
    clean, noise = torch.randn(2, len(sigma), 4, 64, 64)
    level = sigma.view(-1, 1, 1, 1)
    policy.velocity((1 - level) * clean + level * noise, sigma, policy.conditioning(["a"] * len(sigma)))
    (seen,) = network.seen
    assert seen["timestep"].tolist() == [999, 0, 300, 301, 999, 0] and not seen["timestep"].is_floating_point()
    torch.testing.assert_close(seen["sample"].var((1, 2, 3)), torch.ones(len(sigma)), atol=0.05, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_a_network_that_is_right_predicts_the_target(prediction: str, base: Path) -> None:
    policy = policy_of(with_scheduler(twin(KINDS[0], base), prediction_type=prediction))
    prompts, images = [Prompt("a"), Prompt("b")], torch.rand(2, 3, 32, 32)
    rollout = policy.offline(prompts, Outputs(images=images), [GroupKey(0, 0, n) for n in range(2)])
    sample, seeds = torch.tensor([1, 0, 1]), (5, 6, 7)
    view = DenoisingView(sample, torch.tensor([0, 0, 1]), torch.tensor([0.0, 0.5, 0.97]), seeds, 2)
    clean, noise = rollout.trace.clean[sample], torch.stack([normal(seed, SHAPE) for seed in seeds])
    share = policy._pipeline.scheduler.alphas_cumprod

    def right(sample: Tensor, timestep: Tensor, **rest: Any) -> Tensor:
        alpha, s = (x.view(-1, 1, 1, 1) for x in (share[timestep].sqrt(), (1 - share[timestep]).sqrt()))
        torch.testing.assert_close(sample, alpha * clean + s * noise, atol=1e-4, rtol=1e-4)  # as in its training
        answers: dict[str, Tensor] = {"epsilon": noise, "v_prediction": alpha * noise - s * clean, "sample": clean}
        return answers[prediction]

    policy._pipeline.unet = Recording(policy._pipeline.unet, right)
    seen = policy.forward(rollout, view)
    torch.testing.assert_close(seen.target, noise - clean, atol=1e-6, rtol=0)
    torch.testing.assert_close(seen.prediction, seen.target, atol=3e-4, rtol=1e-4)
    assert seen.sigma.tolist() == pytest.approx([0.028341, 0.5, 0.935957], abs=1e-3)  # of the network's own levels
    assert torch.isin(seen.sigma, policy.schedule.levels.float()).all()


@pytest.mark.slow
def test_a_grid_of_levels_for_given_images_is_every_timestep_of_the_networks_training(base: Path) -> None:
    """As often as any other, as Diffusion-DPO draws them: levels that are uniform in (0, 1) crowd at both ends."""
    policy = policy_of(twin(KINDS[0], base))
    rollout = policy.offline([Prompt("a")], Outputs(images=torch.rand(1, 3, 32, 32)), [GroupKey(0, 0, 0)])
    (view,) = DiffusionDpo(sigmas="grid", draws=1000).views(rollout, torch.arange(1), GroupKey(0, 0, 0))
    assert policy.schedule.timestep(view.sigma).sort().values.tolist() == list(range(1000))


@pytest.mark.slow  # most of a second each, or more
@pytest.mark.parametrize(("mean", "std"), [(None, None), ([0.1, -0.2, 0.3, 0.0], [0.9, 1.2, 1.0, 2.0])])
def test_latents_are_scaled_as_the_vae_says(mean: Any, std: Any, base: Path) -> None:
    policy = policy_of(twin("stable_diffusion_xl", base))
    vae = policy._pipeline.vae
    vae.register_to_config(latents_mean=mean, latents_std=std)
    latents, images = torch.randn(2, *SHAPE), torch.rand(2, 3, 32, 32)
    shift = torch.tensor(mean or [0.0] * 4).view(1, 4, 1, 1)
    width = torch.tensor(std or [1.0] * 4).view(1, 4, 1, 1)
    with torch.no_grad():
        expected = (vae.decode(latents * width / 0.13025 + shift).sample / 2 + 0.5).clamp(0, 1)
        torch.testing.assert_close(policy.decode_latents(latents), expected, atol=1e-5, rtol=1e-5)
        posterior = vae.encode(images * 2 - 1).latent_dist.mean
        torch.testing.assert_close(policy.encode_images(images), (posterior - shift) * 0.13025 / width)
    vae.register_to_config(latents_mean=None, latents_std=None)


@pytest.mark.slow
def test_an_empty_negative_prompt_of_xl_is_zeros_where_the_checkpoint_says_so(base: Path) -> None:
    policy = policy_of(twin("stable_diffusion_xl", base))
    states, pooled, sizes = policy.negative().tensors
    assert not states.any() and not pooled.any() and sizes.tolist() == [[32, 32, 0, 0, 32, 32]]
    policy._pipeline.register_to_config(force_zeros_for_empty_prompt=False)
    assert torch.equal(policy.negative().tensors[0], policy.conditioning([""]).tensors[0])
    told = policy_of(twin("stable_diffusion_xl", base), negative_prompt="blurry")
    assert torch.equal(told.negative().tensors[0], told.conditioning(["blurry"]).tensors[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_lora_loads_into_the_stock_pipeline_and_into_a_policy(
    kind: str, base: Path, tmp_path: Path
) -> None:
    policy = policy_of(twin(kind, base))
    for parameter in policy.weights.parameters.values():
        parameter.data.normal_(std=0.2)
    policy.export(tmp_path / "lora")
    latents, sigma = torch.randn(2, *SHAPE), torch.tensor([0.8, 0.3])

    def velocity(of: Any) -> Tensor:
        with torch.no_grad():
            found: Tensor = of.velocity(latents, sigma, of.conditioning(["a", "b"]))
            return found

    ours, base_policy = velocity(policy), policy_of(twin(kind, base), lora=None)
    with policy.weights("reference"):
        torch.testing.assert_close(velocity(policy), velocity(base_policy), atol=1e-5, rtol=1e-4)
    assert (velocity(base_policy) - ours).abs().max() > 1e-2
    base_policy._pipeline.load_lora_weights(tmp_path / "lora")
    torch.testing.assert_close(velocity(base_policy), ours, atol=1e-4, rtol=1e-4)
    again = policy_of(twin(kind, base), lora=Lora(rank=2, path=str(tmp_path / "lora")))
    torch.testing.assert_close(velocity(again), ours, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_full_model_is_a_plain_pipeline_folder(kind: str, base: Path, tmp_path: Path) -> None:
    policy = policy_of(twin(kind, base), lora=None)
    for parameter in policy.weights.parameters.values():
        parameter.data.add_(0.01)
    policy.export(tmp_path / kind)
    again = policy_of(tmp_path / kind, lora=None)
    for name, parameter in policy.weights.parameters.items():
        assert torch.equal(again.weights.parameters[name], parameter), name


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_trained_weights_are_float32_all_get_gradients_and_half_precision_stays_near(
    kind: str, dtype: torch.dtype, lora: Lora | None, base: Path
) -> None:
    policy, full = policy_of(twin(kind, base), dtype, lora=lora), policy_of(twin(kind, base), lora=lora)
    latents, sigma = torch.randn(2, *SHAPE), torch.tensor([0.6, 0.3])
    got, wanted = (p.velocity(latents, sigma, p.conditioning(["a", "b"])) for p in (policy, full))
    assert got.dtype == torch.float32 and (got - wanted).norm() / wanted.norm() < 0.1
    got.square().sum().backward()
    assert {p.dtype for p in policy.weights.parameters.values()} == {torch.float32}
    assert all(p.grad is not None and p.grad.isfinite().all() for p in policy.weights.parameters.values())


@pytest.mark.slow
def test_gradient_checkpointing_changes_no_gradient(base: Path) -> None:
    gradients = []
    for is_on in (False, True):
        policy = policy_of(twin(KINDS[0], base), lora=None, gradient_checkpointing=is_on)
        policy._pipeline.unet.train(is_on)  # checkpoints in training mode only, where nothing else differs
        velocity = policy.velocity(normal(1, (2, *SHAPE)), torch.tensor([0.8, 0.3]), policy.conditioning(["a", "b"]))
        velocity.square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.weights.parameters.values()]))
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_a_folder_of_the_other_kind_is_a_config_error(base: Path) -> None:
    settings = {"name": "stable_diffusion_xl", "model": str(twin("stable_diffusion", base))}
    policy = build("modalities", settings)
    assert (policy.height, policy.width) == (1024, 1024)
    with pytest.raises(ConfigError, match=r"as Stable Diffusion XL: its model_index\.json names 'StableDiffusionPip"):
        policy.prepare(policy_of(twin("stable_diffusion", base))._placement)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_multiples_of_8(kind: str) -> None:
    with pytest.raises(ConfigError, match="must be multiples of 8 pixels, got 20 x 64"):
        build("modalities", {"name": kind, "model": "x/y", "height": 20, "width": 64})
