"""Which layers a LoRA adapts, against lists written by hand, and which parameters never get a gradient."""

import logging
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError
from mmrl.modalities.encoding.network import decoder_name
from mmrl.modalities.loading.adapted_layers import attention_layers, freeze_unused, is_linear, pattern_of
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.tiny.vision_language import TWINS


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_out = nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 4)])
        self.gate = RandomNorm()

    def forward(self, states: Tensor) -> Tensor:
        mixed: Tensor = self.to_out[0](self.to_q(states))
        return mixed


class RandomNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)


class AttnDownBlock(nn.Module):  # holds attention, and is none
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.ff = SelfAttention(), nn.Linear(4, 4)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Linear(4, 4), nn.ModuleList([AttnDownBlock(), AttnDownBlock()])

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        for block in self.blocks:
            one: Any = block
            image, text = image + one.attn(text), one.ff(text)
        return image, text


def test_the_linear_layers_of_attention_are_found_without_norms_and_neighbors() -> None:
    assert attention_layers(Network()) == [f"blocks.{n}.attn.{end}" for n in (0, 1) for end in ("to_q", "to_out.0")]


def test_one_entry_stands_for_numbered_layers_unless_their_layers_differ() -> None:
    names = [f"blocks.{n}.{end}" for n in (0, 1) for end in ("to_q", "to_k")]
    assert pattern_of(names, names) == r"blocks\.\d+\.to_k|blocks\.\d+\.to_q"
    some = ["blocks.0.to_q"]
    found = pattern_of(some, names)
    assert [name for name in names if re.fullmatch(found, name)] == some


def test_parameters_that_reach_no_output_are_frozen() -> None:
    network, both = Network(), torch.ones(2, 4)
    unused = freeze_unused(network, [lambda: network(both, both)[0]])
    expected = {f"blocks.{n}.attn.gate.linear.{kind}" for n in (0, 1) for kind in ("weight", "bias")}
    expected |= {f"{name}.{kind}" for name in ("embed", "blocks.1.ff") for kind in ("weight", "bias")}
    assert set(unused) == expected == {name for name, p in network.named_parameters() if not p.requires_grad}
    assert all(p.grad is None for p in network.parameters())


def test_experts_that_no_token_reached_stay_trained() -> None:
    network = nn.ModuleDict({"experts": nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])})
    experts: Any = network["experts"]
    assert freeze_unused(network, [lambda: experts[0](torch.ones(1, 4))]) == []
    with pytest.raises(ConfigError, match="depends on none of its trained parameters"):
        freeze_unused(network, [lambda: torch.ones(1)])


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down_proj = nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, states: Tensor) -> Tensor:
        return torch.einsum("bi,eij->bj", states, self.down_proj)


def expert_model() -> Any:
    from transformers import PretrainedConfig, PreTrainedModel

    class Model(PreTrainedModel):  # type: ignore[misc,unused-ignore]  # transformers is untyped to some checkers
        def __init__(self) -> None:
            super().__init__(PretrainedConfig())
            self.model = nn.ModuleDict({"experts": Experts(), "to_q": nn.Linear(4, 4)})

        def forward(self, states: Tensor) -> Tensor:
            parts: Any = self.model
            out: Tensor = parts["experts"](parts["to_q"](states))
            return out

    return Model().requires_grad_(False)


def test_packed_weights_of_experts_are_named_in_the_log_and_adapted_when_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from mmrl.modalities.loading.hub import without_adapter

    torch.manual_seed(0)
    model, states = expert_model(), torch.randn(2, 4)
    with caplog.at_level(logging.WARNING):
        Lora(rank=2, alpha=4).add_to_language_model(model, ["model"])
    assert "does not reach 1 weights of experts, which are no linear layers: model.experts.down_proj" in caplog.text
    assert {name.split(".lora_")[0] for name, p in model.named_parameters() if p.requires_grad} == {"model.to_q"}

    model = expert_model()
    base = model(states)
    Lora(rank=2, alpha=4, targets=("experts.down_proj",)).add_to_language_model(model, ["model"])
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 and all("experts" in name for name in trained)
    for tensor in trained.values():
        tensor.data.normal_()
    assert (model(states) - base).abs().max() > 0.1
    with without_adapter(model):
        torch.testing.assert_close(model(states), base)


class Router(nn.Linear):
    def forward(self, states: Tensor) -> Any:
        scores = super().forward(states)
        return scores, scores.argmax(-1)


def test_a_layer_that_computes_more_than_a_linear_one_is_none() -> None:
    named = type("Linear4bit", (Router,), {"__module__": "bitsandbytes.nn.modules"})  # these add to the output
    assert [is_linear(layer) for layer in (nn.Linear(2, 2), Router(2, 2), named(2, 2), nn.Conv1d(2, 2, 1))] == [
        *(True, False, True, False)
    ]


@pytest.mark.slow  # builds models
def test_all_linear_layers_of_llama_4_are_adapted_but_for_its_routers() -> None:
    model, _ = TWINS["llama4"]()
    Lora(rank=2, alpha=4).add_to_language_model(model, [decoder_name(model)])
    adapted = {name.split(".lora_")[0] for name, p in model.named_parameters() if p.requires_grad}
    ends = {name.rpartition(".")[2] for name in adapted}
    assert ends == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert any(name.endswith("router.weight") for name, _ in model.named_parameters())
    model(input_ids=torch.arange(8)[None]).logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    with pytest.raises(ConfigError, match=r"no linear layer of .* has a name that ends in router"):
        Lora(targets=("router",)).add_to_language_model(TWINS["llama4"]()[0], ["language_model.model"])


@pytest.mark.slow
def test_a_lora_says_that_it_does_not_reach_the_experts_of_qwen3_vl(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = TWINS["qwen3_vl_moe"]()
    with caplog.at_level(logging.WARNING):
        Lora(rank=2, alpha=4).add_to_language_model(model, [decoder_name(model)])
    assert (
        "does not reach 4 weights of experts, which are no linear layers: mlp.experts.down_proj, "
        "mlp.experts.gate_up_proj; name their ends in lora.targets" in caplog.text
    )
    assert not any("experts" in name for name, p in model.named_parameters() if p.requires_grad)
