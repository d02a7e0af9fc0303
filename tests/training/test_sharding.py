"""Shards of a small network over two processes: gradients, copies, what is shared, errors."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError
from mmrl.core.weights import Weights, shard_of, whole
from mmrl.training.processes import Processes
from mmrl.training.sharding import layers_of, refuse_unshardable, shard
from tests.process_runs import in_processes
from tests.tiny_shards import TwoLayers, expected_gradients, loss_of

pytestmark = pytest.mark.slow  # what they import of torch.distributed takes ten seconds


def _sharded(is_tied: bool = True) -> tuple[TwoLayers, Weights]:
    network = TwoLayers(is_tied)
    weights = Weights(dict(network.named_parameters()))
    weights.shard(shard([network], [network.body], weights.parameters, 2))
    return network, weights


def _gradients_and_step() -> dict[str, Any]:
    engine, found = Processes("float32", "full"), dict[str, Any]()
    for is_tied in (True, False):
        network, weights = _sharded(is_tied)
        own = torch.tensor([[1, 2, 3]]) if engine.is_main else torch.tensor([[3, 4, 5], [0, 0, 6]])
        loss_of(network, own).backward()  # twice, as for two micro-batches
        loss_of(network, own).backward()
        found[f"gradients {is_tied}"] = {
            name: whole(p.grad).tolist() for name, p in weights.parameters.items() if p.grad is not None
        }
        parameters = list(weights.parameters.values())
        found[f"norm {is_tied}"] = float(engine.step(torch.optim.SGD(parameters, lr=1.0), parameters, 0.5))
        found[f"after {is_tied}"] = {name: whole(p.detach()).tolist() for name, p in weights.parameters.items()}
        found[f"gathered {is_tied}"] = sorted(engine.gathered(weights.tensors("trained")))
    return found


def test_gradients_are_summed_and_clipped_over_all_shards() -> None:
    main, other = in_processes(_gradients_and_step, 2)
    for is_tied in (True, False):
        expected = {name: 2 * gradient for name, gradient in expected_gradients(is_tied).items()}
        norm = float(torch.cat([gradient.flatten() for gradient in expected.values()]).norm())
        before = dict(TwoLayers(is_tied).named_parameters())
        for seen in (main, other):
            assert seen[f"gradients {is_tied}"].keys() == expected.keys()
            assert seen[f"norm {is_tied}"] == pytest.approx(norm, rel=1e-5)
            for name, gradient in expected.items():
                got = {what: torch.tensor(seen[f"{what} {is_tied}"][name]) for what in ("gradients", "after")}
                torch.testing.assert_close(got["gradients"], gradient, atol=1e-6, rtol=1e-5)
                after = before[name].detach() - gradient * (0.5 / norm)
                torch.testing.assert_close(got["after"], after, atol=1e-6, rtol=1e-5)
        assert main[f"gathered {is_tied}"] == sorted(expected) and other[f"gathered {is_tied}"] == []


def _copies() -> dict[str, list[float]]:
    Processes("float32", "full")
    network, weights = _sharded()
    tokens = torch.tensor([[1, 2, 3]])
    seen: dict[str, Tensor] = {}

    def note(name: str) -> None:
        with torch.no_grad():
            seen[name] = loss_of(network, tokens)

    weights.keep("old")
    note("start")
    weights.load("trained", {name: tensor + 1 for name, tensor in _full(weights).items()})
    weights.keep("reference")
    weights.load("trained", {name: tensor + 1 for name, tensor in _full(weights).items()})
    note("trained")
    with weights("old"):
        note("old")
        with weights("reference"):
            note("reference")
            with weights("trained"):
                note("trained inside")
        note("old again")
    with pytest.raises(RuntimeError), weights("old"):
        raise RuntimeError
    note("trained again")
    weights.average("old", 0.25)
    with weights("old"):
        seen["bias"] = whole(weights.parameters["body.layers.0.bias"].detach())
        seen["bias of trained"] = whole(weights.tensors("trained")["body.layers.0.bias"])
    return {name: tensor.flatten().tolist() for name, tensor in seen.items()}  # a pipe sends no tensor of one that ends


def _full(weights: Weights) -> dict[str, Tensor]:
    return {name: whole(tensor) for name, tensor in weights.tensors("trained").items()}


def test_copies_of_shards_are_put_in_place_and_taken_out_also_when_nested_and_on_error() -> None:
    network, tokens = TwoLayers(True), torch.tensor([[1, 2, 3]])
    losses = []
    for _ in range(3):
        losses.append(loss_of(network, tokens).item())
        for parameter in network.parameters():
            parameter.data += 1
    start = TwoLayers(True).get_parameter("body.layers.0.bias").detach()
    for seen in in_processes(_copies, 2):
        for name, number in {"start": 0, "old": 0, "old again": 0, "reference": 1}.items():
            assert seen[name] == pytest.approx([losses[number]], rel=1e-6)
        for name in ("trained", "trained inside", "trained again"):
            assert seen[name] == pytest.approx([losses[2]], rel=1e-6)
        torch.testing.assert_close(torch.tensor(seen["bias of trained"]), start + 2)
        torch.testing.assert_close(torch.tensor(seen["bias"]), start + 1.5)  # a quarter of old, three of trained


def _failing() -> list[str]:
    engine, seen = Processes("float32", "full"), []
    for where in ("before", "between", "nobody", "both"):
        try:
            with engine.lockstep():
                if where == "both" or (where == "before" and not engine.is_main):
                    raise ConfigError(f"{where} {engine.is_main}")
                for step in range(engine.maximum(2 if engine.is_main else 4)):
                    assert engine.maximum(step + int(engine.is_main)) == step + 1
                    if where == "between" and step == 2 and engine.is_main:
                        raise ConfigError("between")
            seen.append("fine")
        except ConfigError as error:
            seen.append(str(error))
    return seen


def test_an_error_of_one_process_ends_the_questions_of_the_others() -> None:
    main, other = in_processes(_failing, 2)
    assert main == ["before False", "between", "fine", "both True"]
    assert other == ["before False", "between", "fine", "both False"]


def test_layers_are_members_of_the_outermost_lists_that_hold_weights() -> None:
    inner = nn.Sequential(nn.ModuleList([nn.Linear(1, 1)]))
    network = nn.Sequential(nn.Sequential(nn.ModuleList([inner, nn.ReLU()])), nn.Linear(1, 1))
    assert layers_of(network) == [inner]


def test_what_is_whole_stays_whole() -> None:
    tensor = torch.ones(3)
    assert whole(tensor) is tensor and shard_of(tensor, torch.zeros(3)) is tensor


def test_a_policy_that_cannot_idle_is_refused() -> None:
    policy: Any = object()
    with pytest.raises(ConfigError, match="modality 'mine' can only be replicated"):
        refuse_unshardable(policy, "mine", "float32", "adamw")
