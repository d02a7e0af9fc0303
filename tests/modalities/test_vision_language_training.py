"""Which weights of a vision-language policy learn, in which precision, and what is written of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.views import DecisionView
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.tiny.vision_language import BUILDERS
from mmrl.modalities.vision_language import VisionLanguage
from tests import vision_twins

ALL = DecisionView(torch.arange(9))


def test_vision_is_frozen_or_learns_at_its_own_rate() -> None:
    frozen = vision_twins.policy(vision="frozen").weights
    assert not [name for name in frozen.parameters if "visual" in name]
    trained = vision_twins.policy(vision_rate=0.1).weights
    assert {name for name in trained.parameters if "visual" not in name} == set(frozen.parameters)
    assert {scale for name, scale in trained.rate_scale.items() if "visual" in name} == {0.1}
    assert {scale for name, scale in trained.rate_scale.items() if "visual" not in name} == {1.0}


@pytest.mark.slow
def test_adapters_sit_on_the_language_models_linear_layers_unless_targets_or_vision_say_otherwise() -> None:
    def layers(**settings: Any) -> set[str]:
        names = vision_twins.policy(**settings).weights.parameters
        return {name.split(".lora_")[0].split(".")[-1] + ("@visual" if "visual" in name else "") for name in names}

    everywhere = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert layers(lora=Lora(rank=2), vision="frozen") == everywhere
    assert layers(lora=Lora(rank=2, targets=("q_proj", "mlp.up_proj")), vision="frozen") == {"q_proj", "up_proj"}
    assert {"qkv@visual", "0@visual", "q_proj"} < layers(lora=Lora(rank=2))
    with pytest.raises(ConfigError, match=r"lora.targets: no linear layer of model.language_model has .* lm_head"):
        layers(lora=Lora(targets=("lm_head",)), vision="frozen")


@pytest.mark.slow
def test_the_adapter_off_is_the_reference_and_an_adapter_that_was_loaded_is_its_own(tmp_path: Path) -> None:
    policy = vision_twins.policy(lora=Lora(rank=2, alpha=4))
    rollout = vision_twins.rollout(policy, 6)
    base = policy.recorded(rollout, ALL).values
    for name, tensor in policy.weights.tensors("trained").items():
        if "lora_B" in name:
            tensor.normal_(0.0, 0.3)
    with torch.no_grad():
        moved = policy.forward(rollout, ALL).values
        with policy.weights("reference"):
            torch.testing.assert_close(policy.forward(rollout, ALL).values, base, atol=1e-5, rtol=0)
        assert (moved - base).abs().max() > 0.1
        policy.export(tmp_path)
        again = vision_twins.policy(lora=Lora(rank=2, alpha=4, path=str(tmp_path)))
        torch.testing.assert_close(again.forward(rollout, ALL).values, moved, atol=1e-5, rtol=0)
        assert not again.weights.has("reference")  # its start is the adapter, of which a copy is kept


@pytest.mark.slow
def test_the_dropout_of_a_loaded_adapter_sleeps_in_rollout_and_update(tmp_path: Path) -> None:
    policy = vision_twins.policy(lora=Lora(rank=2))
    for tensor in policy.weights.tensors("trained").values():
        tensor.data.normal_(0.0, 0.3)
    policy.export(tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings | {"lora_dropout": 0.5}))
    again = vision_twins.policy(lora=Lora(path=str(tmp_path)))
    rollout = vision_twins.rollout(again, 3)
    with torch.no_grad():
        torch.testing.assert_close(again.forward(rollout, ALL).values, again.recorded(rollout, ALL).values)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")
def test_a_loaded_adapter_on_frozen_vision_stays_as_it_is_and_one_on_the_head_is_refused(tmp_path: Path) -> None:
    policy = vision_twins.policy(lora=Lora(rank=2))
    policy.export(tmp_path / "adapter")
    again = vision_twins.policy(lora=Lora(path=str(tmp_path / "adapter")), vision="frozen")
    assert set(again.weights.parameters) == {name for name in policy.weights.parameters if "visual" not in name}
    model: Any = vision_twins.policy().modules()["model"]
    model.add_adapter(LoraConfig(r=2, target_modules=["lm_head", "q_proj"]))
    model.save_pretrained(tmp_path / "head")
    with pytest.raises(ConfigError, match=r"lora.path: .*head adapts lm_head"):
        vision_twins.policy(lora=Lora(path=str(tmp_path / "head")))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers so
def test_an_adapter_folder_is_peft_s_own(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    policy = vision_twins.policy(lora=Lora(rank=2, alpha=4))
    policy.export(tmp_path)
    base = AutoModelForImageTextToText.from_pretrained(vision_twins.twin("qwen2_5_vl"))
    loaded = PeftModel.from_pretrained(base, tmp_path).state_dict()
    for name, tensor in policy.weights.tensors("trained").items():
        assert torch.equal(loaded[f"base_model.model.{name.removeprefix('model.')}"], tensor)


@pytest.mark.slow
@pytest.mark.parametrize("family", BUILDERS)
def test_an_exported_model_is_loaded_as_it_was(family: str, tmp_path: Path) -> None:
    policy = vision_twins.policy(family)
    rollout = vision_twins.rollout(policy, 4)
    with torch.no_grad():
        for tensor in policy.weights.tensors("trained").values():
            tensor.mul_(1.01)
        policy.export(tmp_path)
        again = VisionLanguage(model=str(tmp_path))
        again.prepare(Placement(torch.device("cpu"), torch.float32))
        expected = policy.forward(rollout, ALL).values
        torch.testing.assert_close(again.forward(rollout, ALL).values, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("family", BUILDERS)
def test_it_runs_in_bfloat16(family: str) -> None:
    for settings in ({"lora": Lora(rank=2)}, {"vision": "frozen"}):
        policy = vision_twins.policy(family, dtype=torch.bfloat16, **settings)
        assert {tensor.dtype for tensor in policy.weights.tensors("trained").values()} == {torch.float32}
        rollout = vision_twins.rollout(policy, 4)
        for sharing in ("cache", "packed", "none"):
            policy.sharing = sharing
            found = policy.forward(rollout, ALL).values
            torch.testing.assert_close(found.detach(), policy.recorded(rollout, ALL).values, atol=0.5, rtol=0.1)
            found.sum().backward()


@pytest.mark.slow
def test_the_mode_of_sharing_is_said_and_falls_back_with_its_reason() -> None:
    assert vision_twins.policy().sharing_used == "cache"
    assert vision_twins.policy(gradient_checkpointing=True).sharing_used == "packed"
    assert vision_twins.policy(gradient_checkpointing=True, sharing="cache").sharing_used == "cache"
    policy = vision_twins.policy(sharing="packed")
    model: Any = policy.modules()["model"]
    config = model.config.get_text_config()
    config._attn_implementation = "flash_attention_2"
    assert (
        policy.sharing_used == "none (attention flash_attention_2 takes no tree mask)" and policy.sharing_mode == "none"
    )
