"""Quantised frozen weights under a LoRA, against a model with the same weights dequantised."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.views import DecisionView
from mmrl.modalities.loading.lora import Lora, _begin_at_own_norms
from mmrl.modalities.loading.quantise import Quantise, quantised_layers
from mmrl.modalities.sd3 import StableDiffusion3
from mmrl.modalities.tiny.sd3 import write_tiny_sd3
from mmrl.modalities.vision_language import VisionLanguage
from tests import vision_twins

CPU = Placement(torch.device("cpu"), torch.float32)
LORA = Lora(rank=2, alpha=4)
DORA = Lora(rank=2, alpha=4, use_dora=True, use_rslora=True)
ALL = DecisionView(torch.arange(9))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))
        self.blocks = nn.ModuleList([nn.ModuleDict({"up": nn.Linear(4, 4), "norm": nn.LayerNorm(4)})])
        self.layers, self._keep_in_fp32_modules = nn.ModuleList([nn.ModuleDict({"wo": nn.Linear(4, 4)})]), ["wo"]


def test_linear_layers_of_numbered_blocks_are_quantised_but_for_those_kept_in_float32() -> None:
    assert quantised_layers(Model()) == ["blocks.0.up"]


@pytest.mark.parametrize("kind", [StableDiffusion3, VisionLanguage])
def test_quantised_weights_without_a_lora_are_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="quantise is for frozen weights under a LoRA"):
        kind(model="x/y", quantise=Quantise())
    with pytest.raises(ValueError, match=r"lora\.use_dora needs weights in the run's precision or in 4 bits"):
        kind(model="x/y", lora=DORA, quantise=Quantise(bits=8))


def test_a_missing_library_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"bitsandbytes is missing .*mmrl\[quantise\]"):
        Quantise().apply(Model(), CPU)


def dequantise(quantised: nn.Module, model: nn.Module) -> None:
    """Writes the rounded weights into the float model, as the library reads them back."""
    from bitsandbytes.functional import dequantize_4bit

    for name in quantised_names(quantised):
        weight: Any = quantised.get_submodule(name).weight
        model.get_submodule(name).weight.data = dequantize_4bit(weight.data, weight.quant_state).float()


def quantised_names(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if type(module).__module__ == "bitsandbytes.nn.modules"]


def frozen(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}


def train(policy: Any, loss: Callable[[], Tensor]) -> None:
    """Two steps of Adam on the adapter, checked: all else stays as it was."""
    (model,) = policy.modules().values()
    trained, before = policy.weights.parameters, frozen(model)
    start = {name: p.detach().clone() for name, p in trained.items()}
    optimizer = torch.optim.Adam(trained.values(), lr=0.05)
    for _ in range(2):  # the first factor has no gradient while the second is zero
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert all(torch.equal(before[name], p) for name, p in frozen(model).items())
    assert all(not torch.equal(start[name], p) for name, p in trained.items() if "lora_B" in name)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "lora"), [(4, LORA), (8, LORA), (4, DORA)])
def test_a_quantised_network_of_images_trains_its_adapter_and_says_what_its_dequantised_twin_says(
    bits: Any, lora: Lora, tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes")
    write_tiny_sd3(tmp_path / "twin", 0)

    def policy(**settings: Any) -> StableDiffusion3:
        torch.manual_seed(0)
        given: dict[str, Any] = {
            "model": str(tmp_path / "twin"),
            "lora": lora,
            "height": 32,
            "width": 32,
            "max_sequence_length": 8,
        }
        made = StableDiffusion3(**given | settings)
        made.prepare(CPU)
        return made

    quantised, plain = policy(quantise=Quantise(bits=bits)), policy()
    latents, sigma = torch.randn(2, *plain.latent_shape), torch.tensor([0.8, 0.3])

    def velocity(of: StableDiffusion3) -> Tensor:
        return of.velocity(latents, sigma, of.conditioning(["a", "b"]))

    with torch.no_grad():
        ours, theirs = velocity(quantised), velocity(plain)
        distance = (ours - theirs).norm() / theirs.norm()
        assert 0 < distance < (0.3 if bits == 4 else 0.03)
        if bits == 4:
            dequantise(quantised.trained_network(), plain.trained_network())
            if lora.use_dora:  # its lengths are those of the rounded weights
                _begin_at_own_norms(plain.trained_network())
            torch.testing.assert_close(ours, velocity(plain), atol=1e-5, rtol=1e-5)
    train(quantised, lambda: velocity(quantised).square().sum())
    with torch.no_grad():
        moved = velocity(quantised)
        assert (moved - ours).abs().max() > 1e-3
        with quantised.weights("reference"):
            torch.testing.assert_close(velocity(quantised), ours, atol=1e-6, rtol=1e-6)
        quantised.export(tmp_path / "lora")
        again = policy(quantise=Quantise(bits=bits), lora=replace(lora, path=str(tmp_path / "lora")))
        torch.testing.assert_close(velocity(again), moved, atol=1e-6, rtol=1e-6)


@pytest.mark.slow
def test_a_quantised_language_model_trains_its_adapter_and_says_what_its_dequantised_twin_says(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    settings: dict[str, Any] = {"lora": Lora(rank=2, alpha=4), "quantise": Quantise(type="fp4")}
    quantised, plain = vision_twins.policy(**settings), vision_twins.policy(lora=Lora(rank=2, alpha=4))
    rollout = vision_twins.rollout(quantised, 6)
    recorded = quantised.recorded(rollout, ALL).values
    with torch.no_grad():
        ours = quantised.forward(rollout, ALL).values
        torch.testing.assert_close(ours, recorded, atol=1e-5, rtol=0)
        assert 0 < (plain.forward(rollout, ALL).values - ours).abs().mean() < 1
        dequantise(quantised.modules()["model"], plain.modules()["model"])
        torch.testing.assert_close(plain.forward(rollout, ALL).values, ours, atol=1e-5, rtol=0)
    train(quantised, lambda: -quantised.forward(rollout, ALL).values.sum())
    with torch.no_grad():
        moved = quantised.forward(rollout, ALL).values
        assert (moved - ours).abs().max() > 1e-2
        with quantised.weights("reference"):
            torch.testing.assert_close(quantised.forward(rollout, ALL).values, ours, atol=1e-5, rtol=0)
        quantised.export(tmp_path)
        again = vision_twins.policy(**settings | {"lora": Lora(path=str(tmp_path))})
        torch.testing.assert_close(again.forward(rollout, ALL).values, moved, atol=1e-5, rtol=0)
