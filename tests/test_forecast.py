"""The forecast of memory and hours, by counts that others published and by sums worked out by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mmrl.assembly import forecast
from mmrl.core.config import MemorySettings
from mmrl.core.contracts import Footprint, Workload
from mmrl.modalities.language import footprint
from mmrl.modalities.loading.architectures import architecture_of
from mmrl.modalities.loading.weightless import backward_peak, emptied, forward_costs, on_meta, without_content
from mmrl.system.errors import ConfigError


@pytest.mark.slow  # torch's fake tensors take seconds to import
def test_a_network_without_content_counts_what_a_linear_layer_does() -> None:
    layer = on_meta(lambda: nn.Linear(8, 16), torch.float32).requires_grad_(True)
    with without_content():
        emptied(layer)
        peak, flops, kernels = forward_costs(lambda: layer(torch.empty(4, 8)))
        assert layer.weight.untyped_storage().nbytes() == 4 * 8 * 16
    assert peak == 4 * (4 * 8 + 4 * 16)  # input and output, float32
    assert flops == 2 * 4 * 8 * 16
    assert kernels == 1  # one product with its bias


@pytest.mark.slow  # torch's fake tensors take seconds to import
def test_gradients_of_weights_are_not_among_activations() -> None:
    small, large = (on_meta(lambda: nn.Linear(64, 64), torch.float32).requires_grad_(True) for _ in range(2))
    peaks = []
    for layers in ([small], [small, large]):
        network = nn.Sequential(*layers)
        with without_content():
            emptied(network)
            peaks.append(backward_peak(network, lambda: network(torch.empty(1, 64)).sum()))  # noqa: B023
    assert peaks[1] - peaks[0] < 4 * 64 * 64  # one gradient of a weight at a time


def test_an_unknown_model_says_what_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"config\.json.*cache of the hub"):
        architecture_of("Qwen/Qwen9-VL-1B")


def _said(**changes: Any) -> dict[str, int]:
    """Memory of a footprint of round numbers: 100 frozen, 40 trained, 5 activations of which 1 at the end."""
    given: dict[str, Any] = {"is_adapter": False, "calls": 8, "micro_batch": 4, "needs": frozenset(), "memory": {}}
    given |= changes
    memory = MemorySettings(**given["memory"])
    config: Any = SimpleNamespace(
        averaging=None,
        optimizer=SimpleNamespace(name="adamw", fused=given.get("fused")),
        memory=memory,
        updates=SimpleNamespace(minibatches=1),
        rewards=(),
    )
    loss = SimpleNamespace(needs=given["needs"], old_decay=lambda _: None)
    parts: Any = SimpleNamespace(loss=loss, scorer=SimpleNamespace(needs=frozenset(given.get("reads", ()))))
    trained = torch.bfloat16 if memory.trained_weights == "bfloat16" else torch.float32
    work = Workload(torch.float32, 8, 8, 4, given["calls"], given["micro_batch"], 1, 1, 0, trained)
    one = Footprint(
        *(100, 40, 10, given["is_adapter"], 5, 1, 7, 3, 2, 1.0, 1.0, False, 1, 0), features=given.get("features", 0)
    )
    return forecast.memory_of(config, parts, work, one, on_gpu=given.get("on_gpu", False))


def test_phases_are_sums_of_what_is_there() -> None:
    said = _said()
    assert said["weights"] == 140
    assert said["rollout"] == 140 + 80 + 7 + 3 + 2  # with both moments of Adam
    assert said["update"] == 140 + 80 + 3 + 40 + 5  # gradients of two micro-batches stay
    assert said["optimizer_step"] == 140 + 80 + 3 + 40 + 20
    assert said["peak"] == 283


def test_features_of_a_frozen_tower_stay_from_the_rollout_to_the_last_step() -> None:
    without, said = _said(), _said(features=50)
    grown = {phase: said[phase] - without[phase] for phase in said}
    assert grown == {"weights": 0, "checkpoint": 0, "peak": 50} | dict.fromkeys(
        ("rollout", "scoring", "update", "optimizer_step"), 50
    )
    on_host = {"rollouts": "host"}
    assert _said(features=50, memory=on_host)["update"] == _said(memory=on_host)["update"] + 50  # they are not moved


def _counted(**settings: Any) -> tuple[Any, Any]:
    return SimpleNamespace(vision="frozen", kept_features_gb=2.0, **settings), Workload(
        torch.bfloat16, 24, 24, 8, 24, 8, 1, 1300, 100
    )


@pytest.mark.slow  # a model of 7 billion weights, without memory
def test_features_are_a_vector_for_each_token_of_each_prompt_up_to_a_bound() -> None:
    model = on_meta(architecture_of("Qwen/Qwen2.5-VL-7B-Instruct").parts["model"].make, torch.bfloat16)
    policy, work = _counted()
    assert footprint._features(policy, model, work, 2) == 3 * 1300 * 3584 * 2  # 3 prompts, 3,584 numbers, bfloat16
    policy.kept_features_gb = 0.01
    assert footprint._features(policy, model, work, 2) == 10_000_000
    policy.vision = "trained"
    assert footprint._features(policy, model, work, 2) == 0


def test_gradients_of_a_single_micro_batch_come_as_activations_go() -> None:
    assert _said(micro_batch=8)["update"] == 140 + 80 + 3 + 41


def test_a_reference_is_a_copy_but_of_an_adapter() -> None:
    assert _said(needs=frozenset({"reference"}))["weights"] == 180
    assert _said(needs=frozenset({"reference"}), is_adapter=True)["weights"] == 140
    assert _said(needs=frozenset(), reads=["likelihoods.reference"])["weights"] == 180, "a reward reads by it"


def test_masters_are_twice_the_weights_and_gradients_as_large_as_masters() -> None:
    said = _said(memory={"trained_weights": "bfloat16"}, needs=frozenset({"reference"}))
    assert said["weights"] == 100 + 40 + 40  # the reference is rounded too
    assert said["checkpoint"] == 180 + 80 + 160  # masters and two moments in float32
    assert said["update"] == 420 + 3 + 80 + 5
    assert said["optimizer_step"] == 420 + 3 + 80 + 2 * 20  # the largest tensor, in float32


def test_what_is_on_the_host_is_not_on_the_device() -> None:
    all_there = {"optimizer": "host", "copies": "host", "rollouts": "host"}
    said = _said(memory=all_there, needs=frozenset({"reference"}), on_gpu=True)
    assert said["weights"] == said["checkpoint"] == 140
    assert said["host"] == (40 + 80) + 40 + (3 + 2)  # masters and moments, the reference, the rollout
    assert said["rollout"] == 140 + 7 + 3 + 2  # before it is moved
    assert said["update"] == 140 + 40 + max(5, 40 + 1)  # the reference is in place before there is a graph
    assert said["optimizer_step"] == 140 + 40 + 3 * 40  # a chunk of masters and moments, here all
    assert said["peak"] == 300


def test_a_step_of_one_kernel_takes_no_temporaries_and_one_of_lists_those_of_all_tensors() -> None:
    assert _said(on_gpu=True)["optimizer_step"] == 140 + 80 + 3 + 40
    assert _said(on_gpu=True, fused=False)["optimizer_step"] == 140 + 80 + 3 + 40 + 40
    assert _said(fused=True)["optimizer_step"] == 140 + 80 + 3 + 40
