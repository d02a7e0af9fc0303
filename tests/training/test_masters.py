"""Masters of the trained weights, on the device or the host: the steps on them, and runs with them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.core.config import OptimizerSettings
from mmrl.core.weights import Weights
from mmrl.training import optimizer as stepping
from mmrl.training.optimizer import optimizer_of, step_on_masters
from mmrl.training.processes import Processes
from tests.pretend_accelerator import DEVICE, Remote, pretended
from tests.process_runs import assert_same_run, ended_well, final_tensors, metrics, mmrl, movement, train, write_inputs

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"weight_decay": 0.1},
    "adamw, fused": {"name": "adamw", "weight_decay": 0.1, "fused": True},
    "adam": {"name": "adam"},
    "sgd": {"name": "sgd", "weight_decay": 0.1},
    "sgd, fused": {"name": "sgd", "fused": True},
}


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3), nn.Linear(3, 1, bias=False))


def stepped(settings: OptimizerSettings, *, masters: str, steps: int = 4, rate_scale: Any = None) -> dict[str, Tensor]:
    """The trained tensors after some steps, by an optimizer without masters, or with them on a place."""
    layers, processes = network(), Processes()
    weights = Weights(dict(layers.named_parameters()), rate_scale=rate_scale)
    if masters != "none":
        weights.hold_masters(torch.float32, are_on_host=masters == "host")
    optimizer = optimizer_of(settings, weights)
    parameters = list(weights.parameters.values())
    for step in range(steps):
        layers(torch.randn(4, 5, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        own = (lambda: step_on_masters(optimizer, weights)) if masters != "none" else None
        processes.step(optimizer, parameters, 1.0, masters=own)
    network_holds = {name: parameter.detach() for name, parameter in weights.parameters.items()}
    assert all(torch.equal(network_holds[name], tensor) for name, tensor in weights.tensors("trained").items())
    return weights.tensors("trained")


@pytest.mark.parametrize("chunk", [1, 100, 2**28])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_on_masters_are_those_without_bit_for_bit(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "CHUNK", chunk)
    settings = OptimizerSettings.model_validate({"learning_rate": 0.1, **OPTIMIZERS[name]})
    for scales in (None, {"0.bias": 0.5}):
        expected = stepped(settings, masters="none", rate_scale=scales)
        for place in ("device", "host"):
            got = stepped(settings, masters=place, rate_scale=scales)
            assert all(torch.equal(expected[key], got[key]) for key in expected)


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_a_fused_step_is_the_same_up_to_rounding(name: str) -> None:
    plain, fused = (
        stepped(OptimizerSettings.model_validate({"name": name, "learning_rate": 0.1, "fused": fused}), masters="none")
        for fused in (False, True)
    )
    for key in plain:
        torch.testing.assert_close(fused[key], plain[key], atol=1e-6, rtol=1e-6)


def test_fused_is_left_to_torch_on_a_cpu() -> None:
    weights = Weights(dict(network().named_parameters()))
    assert optimizer_of(OptimizerSettings(), weights).param_groups[0]["fused"] is None
    assert optimizer_of(OptimizerSettings(fused=True), weights).param_groups[0]["fused"] is True


def test_gradients_of_bfloat16_weights_are_summed_in_float32_and_stepped_on_masters() -> None:
    # w = 1 + 2^-9 rounds to 1 in bfloat16, and so does every step of 2^-9; the masters keep them all
    weight = nn.Parameter(torch.tensor([1 + 2**-9]))
    weights = Weights({"w": weight})
    weights.hold_masters(torch.bfloat16, are_on_host=False)
    assert weight.dtype == torch.bfloat16 and weight.item() == 1.0
    optimizer = optimizer_of(OptimizerSettings(name="sgd", betas=(0.0, 0.0), learning_rate=1.0), weights)
    for _ in range(3):
        (weight * 256).sum().backward()  # in bfloat16 256 + 1 is 256
        weight.sum().backward()
        assert weight.grad is not None and weight.grad.dtype == torch.float32 and weight.grad.item() == 257
        weight.grad.mul_(2**-9 / 257)
        step_on_masters(optimizer, weights)
        assert weight.grad is None
    assert weights.tensors("trained")["w"].item() == 1 - 2 * 2**-9
    assert weight.item() == torch.tensor(1 - 2 * 2**-9).bfloat16().item()


def test_masters_have_their_copies_and_the_network_sees_roundings() -> None:
    weight = nn.Parameter(torch.tensor([1 + 2**-9, 3.0]))
    weights = Weights({"w": weight})
    weights.hold_masters(torch.bfloat16, are_on_host=True)
    weights.keep_on_host()
    for which in ("reference", "averaged", "old"):
        weights.keep(which)
    storage = weight.data_ptr()
    weights.load("trained", {"w": torch.tensor([2 + 2**-8, 5.0])})
    assert weight.tolist() == [2.0, 5.0]
    weights.average("averaged", 0.5)
    average = torch.tensor([1.5 + 2**-9 * 1.5, 4.0])
    torch.testing.assert_close(weights.tensors("averaged")["w"], average, rtol=0, atol=0)
    assert weights.tensors("old")["w"].tolist() == [1 + 2**-9, 3.0]
    with weights("averaged"):
        assert weight.dtype == torch.bfloat16 and weight.tolist() == average.bfloat16().tolist()
        with weights("reference"):
            assert weight.tolist() == [1.0, 3.0]
        with weights("trained"):
            assert weight.tolist() == [2.0, 5.0]
    assert weight.data_ptr() == storage


@pytest.mark.slow
def test_host_tensors_are_moved_to_an_accelerator_and_back() -> None:
    expected = stepped(OptimizerSettings(learning_rate=0.1), masters="none", steps=3)
    with pretended() as notes:
        layers, processes = network().to(DEVICE), Processes()
        weights = Weights(dict(layers.named_parameters()))
        weights.hold_masters(torch.float32, are_on_host=True)
        weights.keep_on_host()
        weights.keep("reference")
        weights.keep("averaged")
        optimizer = optimizer_of(OptimizerSettings(learning_rate=0.1), weights)
        for step in range(3):
            inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(step)).to(DEVICE)
            layers(inputs).square().sum().backward()
            with weights("reference"):
                assert isinstance(layers[0].weight.data, Remote)
            own = list(weights.parameters.values())
            processes.step(optimizer, own, 1.0, masters=lambda: step_on_masters(optimizer, weights))
            weights.average("averaged", 0.5)
        held = [one for state in optimizer.state.values() for one in state.values()]
        assert held and not any(isinstance(one, Remote) for one in held)
        for which in ("trained", "reference", "averaged"):
            assert not any(isinstance(tensor, Remote) for tensor in weights.tensors(which).values())
        got = {name: tensor.clone() for name, tensor in weights.tensors("trained").items()}
        assert not notes.mixes
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor)


# Runs on the lab of shapes, full training.

HOST = {"optimizer": "host", "copies": "host"}
REFERENCE = {"loss": {"name": "grpo", "clip_low": 0.01, "clip_high": 0.01, "kl_coef": 0.1}}
BFLOAT16: dict[str, Any] = {"precision": "bfloat16", "memory": {"trained_weights": "bfloat16", **HOST}}


def resumed(folder: Path) -> tuple[Path, Path]:
    """A run of three iterations, and one that was stopped after two and went on."""
    whole = train(folder, "whole", 1)
    train(folder, "parts", 1, "iterations=2")
    ended_well(mmrl(folder, ["train", "--resume", "parts", "iterations=3"], 1))
    return whole, folder / "parts"


@pytest.mark.slow  # runs of the lab
def test_a_run_with_all_on_the_host_is_the_run_without_bit_for_bit(tmp_path: Path) -> None:
    write_inputs(tmp_path / "device", REFERENCE)
    write_inputs(tmp_path / "host", REFERENCE | {"memory": HOST})
    device = train(tmp_path / "device", "one", 1)
    whole, parts = resumed(tmp_path / "host")
    expected = final_tensors(device)
    for run in (whole, parts):
        found = final_tensors(run)
        assert found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in expected)
    assert movement(device, 2, 3) > 1e-4


@pytest.mark.slow  # runs of the lab
def test_a_run_with_bfloat16_weights_saves_masters_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    write_inputs(tmp_path, REFERENCE | BFLOAT16)
    whole, parts = resumed(tmp_path)
    expected, found = final_tensors(whole), final_tensors(parts)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    trained = {key: tensor for key, tensor in expected.items() if key.startswith("trained")}
    assert trained and all(tensor.dtype == torch.float32 for tensor in trained.values())
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in trained.values())
    assert [line["reward/mean"] for line in metrics(whole) if "reward/mean" in line]


@pytest.mark.slow  # two runs of the lab
def test_two_processes_make_the_run_of_one_with_all_on_the_host(tmp_path: Path) -> None:
    write_inputs(tmp_path, REFERENCE | {"memory": HOST, "optimizer": {"learning_rate": 1e-3, "epsilon": 1e-5}})
    one, two = train(tmp_path, "one", 1), train(tmp_path, "two", 2)
    assert_same_run(one, two)
    assert movement(one, 2, 3) > 1e-4
