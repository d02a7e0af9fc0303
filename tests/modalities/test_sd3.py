"""The SD3 policy against the stock pipeline, and its own promises."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Outputs, Prompt
from mmrl.core.keys import GroupKey, normal
from mmrl.core.views import DecisionView, DenoisingView
from mmrl.modalities.flow.decisions import Conditioning
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.sd3 import StableDiffusion3
from mmrl.plans.flow import Plan
from mmrl.samplers.flow_sde import FlowSDE
from mmrl.samplers.ode import ODE
from tests.parameters import slow_but

KEY = GroupKey(3, 0, 0)


def ode_images(policy: StableDiffusion3, prompt: str, sampler: ODE, count: int = 2) -> torch.Tensor:
    images = policy.rollout([Prompt(prompt)], [sampler.plan(policy, KEY, count)], [KEY]).outputs.images
    assert images is not None
    return images


@pytest.mark.parametrize(
    ("guidance", "sigmas"), slow_but([(1.0, "pipeline"), (4.5, "pipeline"), (4.5, "uniform")], (4.5, "pipeline"))
)
def test_an_ode_plan_draws_what_the_stock_pipeline_draws(
    twin_policy: Any, twin_folder: Path, guidance: float, sigmas: Any
) -> None:
    policy = twin_policy(negative_prompt="blurry")
    ours = ode_images(policy, "a cat", ODE(num_steps=5, sigmas=sigmas, guidance_scale=guidance))
    pipeline = StableDiffusion3Pipeline.from_pretrained(twin_folder)
    pipeline.set_progress_bar_config(disable=True)
    stock = pipeline(
        "a cat",
        negative_prompt="blurry",
        num_images_per_prompt=2,
        num_inference_steps=5,
        sigmas=torch.linspace(1, 1 / 5, 5).tolist() if sigmas == "uniform" else None,
        guidance_scale=guidance,
        height=32,
        width=32,
        max_sequence_length=8,
        latents=normal(KEY.seed_for("root"), (2, *policy.latent_shape)),
        output_type="pt",
    ).images
    torch.testing.assert_close(ours, stock, atol=2e-4, rtol=0)


@pytest.mark.slow
def test_the_pipeline_grid_and_the_uniform_grid_are_the_published_ones(twin_policy: Any) -> None:
    policy = twin_policy()
    # docs/maths/flow-matching.md#golden-grids: as diffusers runs it (sigma_min shifted twice) and shifted once
    stock = [1, 0.96013, 0.91335, 0.85769, 0.79037, 0.70728, 0.60215, 0.46488, 0.27805, 0.00893, 0]
    once = [1, 0.96429, 0.92308, 0.875, 0.81818, 0.75, 0.66667, 0.5625, 0.42857, 0.25, 0]
    torch.testing.assert_close(torch.tensor(policy.sigmas("pipeline", 10)), torch.tensor(stock), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(policy.sigmas("uniform", 10)), torch.tensor(once), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_guidance_one_makes_one_call_and_equals_the_conditional_branch(lab_policy: Any) -> None:
    policy = lab_policy()
    latents, sigma = torch.randn(3, *policy.latent_shape), torch.tensor([0.9, 0.5, 0.2])
    conditioning = policy.conditioning(["red circle top left"] * 3)
    before = policy.num_calls
    with torch.no_grad():
        plain = policy._guided(latents, sigma, conditioning, 1.0)
        assert policy.num_calls - before == 3
        guided = policy._guided(latents, sigma, conditioning, 3.0)
        assert policy.num_calls - before == 3 + 6
        negative = policy.velocity(latents, sigma, policy.conditioning([""] * 3))
    torch.testing.assert_close(guided, negative + 3.0 * (plain - negative), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_each_distinct_prompt_is_encoded_once(lab_policy: Any) -> None:
    policy = lab_policy()
    seen: list[int] = []
    policy._pipeline.text_encoder.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    a, b = "red circle top left", "blue cross middle right"
    first = policy.conditioning([a, b, a, a])
    again = policy.conditioning([b, a])
    assert seen == [2]
    assert torch.equal(first.tensors[0][1], again.tensors[0][0]) and torch.equal(
        first.tensors[1][2], again.tensors[1][1]
    )


@pytest.mark.slow
def test_a_full_cache_still_answers_right(lab_policy: Any) -> None:
    a, b, c = "red circle top left", "blue cross middle right", "white square top left"
    small, large = lab_policy(prompt_cache=2), lab_policy()
    for texts in ([a, b], [b, c], [a, b, c], [a]):
        got, wanted = small.conditioning(texts), large.conditioning(texts)
        torch.testing.assert_close(got.tensors[0], wanted.tensors[0], atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_the_adapter_off_is_the_base_model_and_the_copies_swap_back(twin_policy: Any) -> None:
    policy = twin_policy()
    base = twin_policy(lora=None)
    latents, sigma = torch.randn(2, *policy.latent_shape), torch.tensor([0.8, 0.3])
    policy.weights.keep("old")
    for parameter in policy.weights.parameters.values():
        parameter.data.normal_(std=0.3)

    def velocity(of: StableDiffusion3) -> torch.Tensor:
        with torch.no_grad():
            return of.velocity(latents, sigma, of.conditioning(["a", "b"]))

    changed, expected = velocity(policy), velocity(base)
    assert (changed - expected).abs().max() > 1e-3
    with policy.weights("reference"):
        torch.testing.assert_close(velocity(policy), expected, atol=1e-6, rtol=1e-5)
    with policy.weights("old"):  # B is zero at the start
        torch.testing.assert_close(velocity(policy), expected, atol=1e-6, rtol=1e-5)
        with policy.weights("reference"), pytest.raises(RuntimeError, match="stop"):
            raise RuntimeError("stop")
    assert torch.equal(velocity(policy), changed)


@pytest.mark.slow
def test_gradient_checkpointing_changes_no_gradient(lab_policy: Any) -> None:
    gradients = []
    for is_on in (False, True):
        policy = lab_policy(gradient_checkpointing=is_on)
        plan = FlowSDE(num_steps=4, sigmas="uniform").plan(policy, KEY, 2)
        rollout = policy.rollout([Prompt("red circle top left")], [plan], [KEY])
        decisions = policy.forward(rollout, DecisionView(torch.arange(6)))
        decisions.log_prob().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.weights.parameters.values()]))
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_half_precision_keeps_trained_weights_in_float32_and_stays_near(
    lab_policy: Any, dtype: torch.dtype, lora: Lora | None
) -> None:
    half, full = lab_policy(dtype, lora=lora), lab_policy(lora=lora)
    assert {p.dtype for p in half.weights.parameters.values()} == {torch.float32}
    latents, sigma = torch.randn(2, *half.latent_shape), torch.tensor([0.8, 0.3])
    got = half.velocity(latents, sigma, half.conditioning(["red circle top left"] * 2))
    wanted = full.velocity(latents, sigma, full.conditioning(["red circle top left"] * 2))
    assert got.dtype == torch.float32
    assert ((got - wanted).norm() / wanted.norm()) < 0.05
    got.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in half.weights.parameters.values())


@pytest.mark.slow
def test_given_images_are_encoded_and_noised_again(lab_policy: Any) -> None:
    policy = lab_policy()
    prompts = [Prompt("red circle top left"), Prompt("white square top left")]
    images = torch.rand(2, 3, 32, 32)
    rollout = policy.offline(prompts, Outputs(images=images), [GroupKey(0, 0, n) for n in range(2)])
    vae = policy._pipeline.vae
    with torch.no_grad():
        mean = vae.encode(images * 2 - 1).latent_dist.mean
    clean = (mean - vae.config.shift_factor) * vae.config.scaling_factor
    view = DenoisingView(torch.tensor([1, 0, 1]), torch.tensor([0, 0, 1]), torch.tensor([0.2, 0.5, 0.9]), (5, 6, 5), 2)
    seen = policy.forward(rollout, view)
    for n, (sample, level, seed) in enumerate(((1, 0.2, 5), (0, 0.5, 6), (1, 0.9, 5))):
        noise = normal(seed, policy.latent_shape)
        torch.testing.assert_close(seen.noisy[n], (1 - level) * clean[sample] + level * noise, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(seen.target[n], noise - clean[sample], atol=1e-5, rtol=1e-5)
    assert seen.entry.tolist() == [[1, -1], [0, 2]]
    alone = policy.velocity(seen.noisy[1:2], torch.tensor([0.5]), policy.conditioning(["red circle top left"]))
    torch.testing.assert_close(seen.prediction[1:2], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_noised_sample_is_seen_under_the_prompt_of_its_group(lab_policy: Any) -> None:
    policy = lab_policy()
    texts = ["red circle top left", "blue cross middle right"]
    keys = [GroupKey(0, 0, n) for n in range(2)]
    plans = [ODE(num_steps=2, sigmas="uniform").plan(policy, key, 2) for key in keys]
    rollout = policy.rollout([Prompt(text) for text in texts], plans, keys)
    view = DenoisingView(torch.tensor([1, 3]), torch.tensor([0, 0]), torch.tensor([0.5, 0.5]), (5, 6), 1)
    with torch.no_grad():
        seen = policy.forward(rollout, view)
        alone = [
            policy.velocity(seen.noisy[n : n + 1], torch.tensor([0.5]), policy.conditioning([texts[n]]))
            for n in range(2)
        ]
    torch.testing.assert_close(seen.prediction, torch.cat(alone), atol=1e-5, rtol=1e-5)
    clean = (seen.noisy - 0.5 * torch.stack([normal(seed, policy.latent_shape) for seed in (5, 6)])) / 0.5
    torch.testing.assert_close(clean, rollout.trace.clean[[1, 3]], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_decoding_a_given_image_gives_it_back(lab_policy: Any) -> None:
    from mmrl.labs.shapes import world

    policy = lab_policy()
    prompts = world.prompts("held_out")[:4]
    images = world.render(prompts, torch.Generator().manual_seed(0))
    with torch.no_grad():
        again = policy.decode_latents(policy.encode_images(images))
    assert (again - images).abs().mean() < 0.02


@pytest.mark.slow  # most of a second each, or more
def test_an_exported_lora_loads_into_the_stock_pipeline(twin_policy: Any, twin_folder: Path, tmp_path: Path) -> None:
    policy = twin_policy()
    for parameter in policy.weights.parameters.values():
        parameter.data.normal_(std=0.2)
    policy.export(tmp_path / "lora")
    pipeline = StableDiffusion3Pipeline.from_pretrained(twin_folder)
    latents, sigma = torch.randn(2, *policy.latent_shape), torch.tensor([0.8, 0.3])
    conditioning: Conditioning = policy.conditioning(["a", "b"])

    def stock() -> torch.Tensor:
        with torch.no_grad():
            velocity: torch.Tensor = pipeline.transformer(latents, *conditioning.tensors, sigma * 1000)[0]
            return velocity

    without = stock()
    pipeline.load_lora_weights(tmp_path / "lora")
    with torch.no_grad():
        ours = policy.velocity(latents, sigma, conditioning)
    assert (without - ours).abs().max() > 1e-3
    torch.testing.assert_close(stock(), ours, atol=1e-5, rtol=1e-4)
    again = twin_policy(lora=Lora(rank=2, path=str(tmp_path / "lora")))
    with torch.no_grad():
        torch.testing.assert_close(again.velocity(latents, sigma, conditioning), ours, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_an_exported_full_model_is_a_plain_pipeline_folder(twin_policy: Any, tmp_path: Path) -> None:
    policy = twin_policy(lora=None)
    for parameter in policy.weights.parameters.values():
        parameter.data.add_(0.01)
    policy.export(tmp_path / "full")
    files = list((tmp_path / "full").rglob("*.json"))
    assert len(files) > 5 and not [path for path in files if policy.model in path.read_text()]
    again = StableDiffusion3Policy(tmp_path / "full")
    for name, parameter in policy.weights.parameters.items():
        assert torch.equal(again.weights.parameters[name], parameter), name


def StableDiffusion3Policy(folder: Path) -> StableDiffusion3:
    policy = StableDiffusion3(model=str(folder), height=32, width=32, max_sequence_length=8)
    policy.prepare(Placement(torch.device("cpu"), torch.float32))
    return policy


@pytest.mark.slow  # most of a second each, or more
def test_every_trained_tensor_gets_a_gradient(lab_policy: Any, twin_policy: Any) -> None:
    for policy in (lab_policy(), twin_policy(), twin_policy(lora=None)):
        latents, sigma = torch.randn(2, *policy.latent_shape), torch.tensor([0.8, 0.3])
        policy.velocity(latents, sigma, policy.conditioning(["red circle top left"] * 2)).square().sum().backward()
        missing = [name for name, p in policy.weights.parameters.items() if p.grad is None]
        assert not missing


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "no/such/folder"}, "there is no folder"),
        ({"model": "./missing"}, "there is no folder"),
        ({"lora": Lora(targets=("no_such_layer",))}, "no_such_layer"),
    ],
)
def test_what_cannot_be_loaded_is_a_config_error(twin_policy: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        twin_policy(**settings)


def test_a_folder_of_something_else_is_a_config_error(lab_policy: Any, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"as Stable Diffusion 3: its model_index\.json names None"):
        lab_policy(model=str(tmp_path))


@pytest.mark.parametrize("settings", [{"height": 24}, {"max_sequence_length": 0}, {"network_batch": 0}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        StableDiffusion3(model="x", **settings)


@pytest.mark.slow
def test_plans_of_one_rollout_share_their_guidance(lab_policy: Any) -> None:
    policy = lab_policy()
    plan = ODE(num_steps=2, sigmas="uniform").plan(policy, KEY, 1)
    with pytest.raises(AssertionError, match="guidance"):
        other = Plan(plan.roots, plan.steps, 2.0)
        policy.rollout([Prompt("red circle top left")] * 2, [plan, other], [KEY, KEY])
