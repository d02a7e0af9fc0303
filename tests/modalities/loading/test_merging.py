"""Adapters merged for rollouts: the same answers in float32, the difference said, weights that come back exactly."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.views import DecisionView
from mmrl.modalities.loading.hub import without_adapter
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.loading.merging import MergedAdapters, adapter_layers
from mmrl.modalities.loading.quantise import Quantise
from mmrl.modalities.sd3 import StableDiffusion3
from mmrl.modalities.tiny.sd3 import write_tiny_sd3
from mmrl.modalities.tokens.vllm.engine import Vllm
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.samplers.flow_sde import FlowSDE
from tests import vision_twins
from tests.diffusion_twins import policy_of, twin
from tests.modalities.loading.test_adapted_layers import expert_model

ALL = DecisionView(torch.arange(9))


def stirred(policy: Any) -> Any:
    """The policy with second factors that are not 0."""
    generator = torch.Generator().manual_seed(5)
    for name, tensor in policy.weights.parameters.items():
        if "lora_B" in name:
            tensor.data.copy_(torch.randn(tensor.shape, generator=generator) / 10)
    return policy


def answering(**settings: Any) -> VisionLanguage:
    made: VisionLanguage = stirred(vision_twins.policy(lora=Lora(rank=2, alpha=4, **settings)))
    return made


def frozen(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.named_parameters()}


def assert_restored(network: nn.Module, before: dict[str, Tensor]) -> None:
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.named_parameters())
    assert not any(layer.merged for layer in adapter_layers(network))


def gradients(policy: VisionLanguage, rollout: Rollout) -> list[Tensor]:
    values = policy.forward(rollout, ALL).values
    trained = list(policy.weights.parameters.values())
    return list(torch.autograd.grad((values * torch.linspace(-1, 1, 9)[:, None]).sum(), trained))


@pytest.mark.slow
def test_answers_and_updates_are_the_same_in_float32_and_the_difference_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    apart, merging = answering(), answering(merge_rollouts=True)
    before, calls = frozen(merging._model), list[bool]()
    layer: Any = adapter_layers(merging._model)[0]
    layer.register_forward_hook(lambda *_given: calls.append(layer.merged))
    expected = vision_twins.rollout(apart, 6)
    with caplog.at_level(logging.WARNING):
        found = vision_twins.rollout(merging, 6)
        assert_restored(merging._model, before)
        assert calls and calls[0]
        vision_twins.rollout(merging, 1)
    assert caplog.text.count("lora.merge_rollouts: log-probs of") == 1
    one, other = (rollout.trace.completions for rollout in (found, expected))
    assert torch.equal(one.tokens, other.tokens)
    torch.testing.assert_close(one.log_prob, other.log_prob, atol=1e-5, rtol=0)
    assert not torch.equal(one.log_prob, other.log_prob)  # rounded elsewhere
    calls.clear()
    torch.testing.assert_close(gradients(merging, found), gradients(apart, expected), atol=0, rtol=0)
    assert calls and not any(calls)


@pytest.mark.slow
def test_merged_weights_are_the_sum_rounded_once_and_come_back_bit_for_bit_after_an_error() -> None:
    policy = stirred(vision_twins.policy(lora=Lora(rank=2, alpha=4, merge_rollouts=True), dtype=torch.bfloat16))
    before, merged = frozen(policy._model), policy._merged
    layer: Any = adapter_layers(policy._model)[0]
    weight, factors = layer.base_layer.weight, (layer.lora_B["default"].weight, layer.lora_A["default"].weight)
    expected = (weight.float() + 2 * factors[0] @ factors[1]).bfloat16()
    assert weight.dtype == torch.bfloat16 and not torch.equal(expected, weight)
    with pytest.raises(RuntimeError, match="an error"), merged():
        with merged():  # nested: nothing is added twice
            assert torch.equal(weight, expected)
        assert torch.equal(weight, expected)
        raise RuntimeError("an error")
    assert_restored(policy._model, before)


@pytest.mark.slow
def test_old_weights_are_merged_as_they_are_in_place_and_the_reference_has_no_adapter() -> None:
    policy = answering(merge_rollouts=True)
    prompts = policy.encode(vision_twins.PROMPTS[:1])
    merged: Any = policy._merged

    def log_probs() -> Tensor:
        from mmrl.modalities.tokens.backbone import answers_to_each
        from mmrl.modalities.tokens.sampling import SamplingDistribution

        answers = answers_to_each([torch.tensor(policy.tokenize("a box"))], 1, torch.device("cpu"))
        return policy.log_probs(prompts, answers, SamplingDistribution(1.0, banned=policy.banned))[0]

    policy.weights.keep("old")
    for tensor in policy.weights.parameters.values():
        tensor.data.mul_(-1.5)
    with torch.no_grad():
        base: dict[Any, Tensor] = {}
        for which in ("trained", "old", "reference"):
            with policy.weights(which):
                base[which] = log_probs()
                with merged():
                    torch.testing.assert_close(log_probs(), base[which], atol=1e-5, rtol=0)
                assert torch.equal(log_probs(), base[which])
    assert (base["old"] - base["trained"]).abs().max() > 1e-3 < (base["reference"] - base["old"]).abs().max()


def test_adapted_experts_are_merged() -> None:
    torch.manual_seed(0)
    model, states = expert_model(), torch.randn(2, 4)
    Lora(rank=2, alpha=4, targets=("experts.down_proj", "to_q")).add_to_language_model(model, ["model"])
    for tensor in model.parameters():
        tensor.data.normal_()
    before, expected = frozen(model), model(states)
    with MergedAdapters([model])():
        assert all(layer.merged for layer in adapter_layers(model))
        torch.testing.assert_close(model(states), expected)
    assert_restored(model, before)
    with without_adapter(model), MergedAdapters([model])():
        assert not any(layer.merged for layer in adapter_layers(model))


def test_a_weight_that_other_layers_read_is_not_merged() -> None:
    model = expert_model()
    model.other = nn.Linear(4, 4)
    model.other.weight = model.model["to_q"].weight
    Lora(rank=2, alpha=4).add_to_language_model(model, ["model"])
    with pytest.raises(ConfigError, match=r"lora\.merge_rollouts: 'other' reads a weight"), MergedAdapters([model])():
        pass


@pytest.mark.slow
def test_images_are_the_same_in_float32_and_the_difference_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tiny_sd3(tmp_path, 0)
    key, found = GroupKey(3, 0, 0), list[Any]()
    for merges in (False, True):
        torch.manual_seed(0)
        policy = StableDiffusion3(
            model=str(tmp_path), height=32, width=32, lora=Lora(rank=2, alpha=4, merge_rollouts=merges)
        )
        policy.prepare(Placement(torch.device("cpu"), torch.float32))
        network = stirred(policy).modules()["transformer"]
        before, plan = frozen(network), FlowSDE(num_steps=2, guidance_scale=2.0).plan(policy, key, 2)
        with caplog.at_level(logging.WARNING):
            found.append(policy.rollout([Prompt("a cat")], [plan], [key]))
        assert_restored(network, before)
        assert ("lora.merge_rollouts: predictions" in caplog.text) is merges
    one, other = (rollout.trace.decided.mean for rollout in found)
    assert 0 < (one - other).abs().max() < 1e-5 * other.abs().max()


@pytest.mark.parametrize("kind", [StableDiffusion3, VisionLanguage])
def test_quantised_sharded_and_remote_rollouts_are_refused(kind: Any) -> None:
    lora = Lora(rank=2, merge_rollouts=True)
    with pytest.raises(ValueError, match=r"lora\.merge_rollouts is for frozen weights in the run's precision"):
        kind(model="x/y", lora=lora, quantise=Quantise())
    sharded = Placement(torch.device("cpu"), torch.float32, maximum=lambda count: count)
    with pytest.raises(ConfigError, match=r"lora\.merge_rollouts: not with weights that are sharded"):
        kind(model="x/y", lora=lora).prepare(sharded)
    with pytest.raises(ValueError, match="an engine is set"):
        VisionLanguage(model="x/y", lora=lora, engine=Vllm(name="vllm", url="http://localhost:1"))


class Casts(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts casts."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
def test_inputs_of_adapters_in_half_precision_are_cast_by_autocast_alone_with_the_same_numbers(base: Path) -> None:
    lora = Lora(rank=2, alpha=4)
    policies = (
        stirred(vision_twins.policy(lora=lora, dtype=torch.bfloat16)),
        stirred(policy_of(twin("stable_diffusion", base), torch.bfloat16, lora=lora)),
    )
    prompts = policies[0].encode(vision_twins.PROMPTS[1:2])
    latents, conditioning = torch.randn(1, 4, 4, 4), policies[1].conditioning(["a"])

    def answer() -> Tensor:
        with policies[0].running():
            hidden: Tensor = policies[0].backbone.prefill(policies[0].backbone.batch(prompts))[0]
        return hidden

    def velocity() -> Tensor:
        found: Tensor = policies[1].velocity(latents, torch.tensor([0.5]), conditioning)
        return found

    for policy, compute in zip(policies, (answer, velocity), strict=True):
        layers = [layer for module in policy.modules().values() for layer in adapter_layers(module)]
        outputs, counts, grads = [], [], []
        for is_cast in (False, True):
            for layer in layers:
                assert is_cast or not layer.cast_input_dtype_enabled
                layer.cast_input_dtype_enabled = is_cast
            with Casts() as casts:
                outputs.append(compute())
            counts.append(casts.count)
            grads.append(torch.autograd.grad(outputs[-1].float().square().sum(), policy.weights.parameters.values()))
        assert torch.equal(*outputs) and all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
        assert counts[1] > counts[0] + len(layers)
