"""The driven pipeline against the hand-written SD3 policy and the stock pipeline."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt
from mmrl.core.keys import GroupKey
from mmrl.core.views import DecisionView, DenoisingView
from mmrl.modalities.diffusers_pipeline import DiffusersPipeline
from mmrl.modalities.flow.driven.proof import prove
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.sd3 import StableDiffusion3
from mmrl.samplers.flow_sde import FlowSDE

PROMPTS = [Prompt("a cat"), Prompt("two red dogs on a table")]
KEYS = [GroupKey(3, 0, 0), GroupKey(3, 0, 1)]


@pytest.fixture
def driven(twin_folder: Path) -> Callable[..., DiffusersPipeline]:
    """Makes the random tiny SD3 a driven policy; settings by keyword."""

    def make(**settings: Any) -> DiffusersPipeline:
        torch.manual_seed(0)
        given: dict[str, Any] = {"model": str(twin_folder), "height": 32, "width": 32}
        policy = DiffusersPipeline(**given | {"arguments": {"max_sequence_length": 8}} | settings)
        policy.prepare(Placement(torch.device("cpu"), torch.float32))
        return policy

    return make


def trained(policy: Any, scale: float) -> tuple[Any, torch.Tensor, dict[str, torch.Tensor], int]:
    """A rollout, its log-probs, their gradient by name, and the calls that were counted."""
    before = policy.num_calls
    plans = [FlowSDE(num_steps=4, guidance_scale=scale).plan(policy, key, 2) for key in KEYS]
    rollout = policy.rollout(PROMPTS, plans, KEYS)
    calls = torch.arange(int(rollout.blocks[0].call.max()) + 1)
    log_prob = policy.forward(rollout, DecisionView(calls)).log_prob()
    recorded = policy.recorded(rollout, DecisionView(calls)).log_prob()
    torch.testing.assert_close(recorded, log_prob.detach(), atol=1e-6, rtol=0)
    (log_prob * torch.arange(log_prob.numel()).view_as(log_prob)).sum().backward()
    gradient = {name: w.grad.clone() for name, w in policy.weights.parameters.items() if w.grad is not None}
    return rollout, log_prob.detach(), gradient, policy.num_calls - before


@pytest.mark.slow  # 3 s: two models
@pytest.mark.parametrize(("scale", "replay"), [(1.0, True), (4.5, True), (4.5, False)])
def test_sd3_driven_is_the_hand_written_sd3(scale: float, replay: bool, driven: Any, twin_policy: Any) -> None:
    own, by_hand = driven(negative_prompt="blurry", replay=replay), twin_policy(lora=None, negative_prompt="blurry")
    assert own.latent_shape == by_hand.latent_shape
    for kind in ("pipeline", "uniform"):
        assert own.sigmas(kind, 5) == by_hand.sigmas(kind, 5)
    (got, log_prob, gradient, calls), (wanted, log_prob_2, gradient_2, calls_2) = (
        trained(policy, scale) for policy in (own, by_hand)
    )
    torch.testing.assert_close(got.outputs.images, wanted.outputs.images, atol=2e-5, rtol=0)
    torch.testing.assert_close(log_prob, log_prob_2, atol=1e-5, rtol=0)
    assert calls == calls_2 and set(gradient_2) <= set(gradient)
    for name, values in gradient_2.items():
        torch.testing.assert_close(gradient[name], values, atol=2e-5, rtol=1e-4)
    view = DenoisingView(torch.arange(2), torch.zeros(2).long(), torch.tensor([0.7, 0.4]), (5, 6), 1)
    ours, theirs = own.forward(got, view), by_hand.forward(wanted, view)
    torch.testing.assert_close(ours.prediction, theirs.prediction, atol=2e-5, rtol=1e-4)


@pytest.mark.slow  # 1 s: two models each
@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_what_never_gets_a_gradient_is_frozen_as_it_is_by_hand(
    lora: Lora | None, driven: Any, twin_policy: Any
) -> None:
    own, by_hand = driven(lora=lora), twin_policy(lora=lora)
    # the pattern finds the second attention of a block, too, which the list by hand leaves out
    found = {name for name in own.weights.parameters if lora is None or ".attn2." not in name}
    assert found == set(by_hand.weights.parameters)
    zeros = [name for name, p in own.weights.parameters.items() if lora is not None and "lora_B" in name]
    assert all(not own.weights.parameters[name].any() for name in zeros)  # as a new LoRA is


@pytest.mark.slow  # 2 s each: stock runs and 8 gradients
@pytest.mark.parametrize(("replay", "most"), [(False, 0), (True, 1e-5)])
def test_the_proof_finds_no_difference_to_the_stock_pipeline(replay: bool, most: float, driven: Any) -> None:
    policy = driven(negative_prompt="blurry", replay=replay)
    proof = prove(policy.driven, policy.weights, PROMPTS[0], [1.0, 3.0])
    assert proof.stock_difference <= most
    assert proof.gradient_difference is not None
    assert proof.batch_difference < 1e-5 and proof.gradient_difference < 1e-4
    assert proof.log_prob_difference == 0 and proof.calls == 1


@pytest.mark.slow  # 1 s: a model
def test_text_encoders_run_once_for_each_prompt_and_paused_calls_are_made_again(driven: Any) -> None:
    policy = driven(paused_calls=1)
    seen: list[int] = []
    policy._pipeline.text_encoder.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    latents, sigma = torch.randn(4, *policy.latent_shape), torch.tensor([0.9, 0.9, 0.5, 0.9])
    conditioning = policy.conditioning_of([PROMPTS[n] for n in (0, 1, 1, 0)])
    with torch.no_grad():
        first, again = (policy.velocity(latents, sigma, conditioning) for _ in range(2))
        alone = torch.cat(
            [policy.velocity(latents[[n]], sigma[[n]], conditioning[torch.tensor([n])]) for n in range(4)]
        )
    assert seen == [1, 1]
    torch.testing.assert_close(first, again, atol=0, rtol=0)
    torch.testing.assert_close(first, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.slow  # 1 s: a model
def test_a_stored_rollout_is_evaluated_by_a_policy_that_has_not_seen_its_prompts(driven: Any) -> None:
    first, second = driven(), driven()
    rollout, log_prob, _, _ = trained(first, 3.0)
    calls = torch.arange(int(rollout.blocks[0].call.max()) + 1)
    with torch.no_grad():
        again = second.forward(rollout, DecisionView(calls)).log_prob()
    torch.testing.assert_close(again, log_prob, atol=1e-6, rtol=0)


@pytest.mark.slow  # 1 s: a model
def test_no_thread_is_left_when_a_policy_is_closed_or_dropped(driven: Any) -> None:
    def threads() -> int:
        return sum(thread.name == "paused pipeline" for thread in threading.enumerate())

    gc.collect()
    before = threads()
    for is_closed in (True, False):
        policy = driven(lora=Lora(rank=2))
        trained(policy, 1.0)
        assert threads() > before
        if is_closed:
            policy.close()
        else:
            del policy
            gc.collect()
        assert threads() == before


@pytest.mark.slow  # 1 s: a model
def test_gradients_of_images_reach_the_weights_through_the_stock_code(driven: Any, twin_policy: Any) -> None:
    gradients = []
    for policy in (driven(), twin_policy(lora=None)):
        latents = torch.randn(2, *policy.latent_shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
        images = policy.decode(latents, policy.conditioning_of(PROMPTS)).images
        assert images is not None
        images.square().sum().backward()
        gradients.append(latents.grad)
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_prompts_with_other_media_than_the_settings_say_are_refused() -> None:
    policy = DiffusersPipeline(model="nobody/nothing", condition_images=1)
    assert "0 images" in str(policy.refusal(PROMPTS[0]))
    assert DiffusersPipeline(model="nobody/nothing").refusal(PROMPTS[0]) is None


@pytest.mark.slow  # 1 s: a model
def test_an_argument_that_the_call_does_not_take_is_refused(driven: Any) -> None:
    with pytest.raises(ConfigError, match="takes no 'max_length'"):
        driven(arguments={"max_length": 3})
    assert StableDiffusion3.title[0] == "sd3"
