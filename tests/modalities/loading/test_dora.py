"""DoRA and rsLoRA: the papers' formulas, a first policy that is the base, rollouts, exports and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError
from mmrl.core.views import DecisionView
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.loading.merging import adapter_layers
from mmrl.modalities.tokens.backbone import answers_to_each
from mmrl.modalities.tokens.sampling import SamplingDistribution
from mmrl.modalities.tokens.vllm.engine import Vllm
from mmrl.modalities.vision_language import VisionLanguage
from tests import vision_twins
from tests.modalities.loading.test_adapted_layers import expert_model

DORA = {"use_dora": True, "use_rslora": True}


def stir(network: nn.Module) -> None:
    """Moves all tensors of the adapter off their start."""
    generator = torch.Generator().manual_seed(5)
    for name, tensor in network.named_parameters():
        if "lora_magnitude" in name:
            tensor.data.mul_(1 + torch.rand(tensor.shape, generator=generator))
        elif "lora_" in name:
            tensor.data.copy_(torch.randn(tensor.shape, generator=generator) / 10)


def adapted(**settings: Any) -> VisionLanguage:
    dtype = settings.pop("dtype", torch.float32)
    return vision_twins.policy(lora=Lora(rank=4, alpha=6, **settings), dtype=dtype)


def log_probs(policy: VisionLanguage) -> Tensor:
    prompts = policy.encode(vision_twins.PROMPTS[:2])
    answers = answers_to_each([torch.tensor(policy.tokenize("a box"))], 2, torch.device("cpu"))
    with torch.no_grad():
        return policy.log_probs(prompts, answers, SamplingDistribution(1.0, banned=policy.banned))[0]


@pytest.mark.parametrize(
    ("settings", "scale"),
    [({}, 6 / 4), ({"use_rslora": True}, 6 / 2), ({"use_dora": True}, 6 / 4), (DORA, 6 / 2)],
)
def test_an_adapted_layer_computes_the_formula_of_its_paper(settings: dict[str, Any], scale: float) -> None:
    torch.manual_seed(0)
    model = expert_model()
    frozen = model.model["to_q"].weight.detach().clone()
    Lora(rank=4, alpha=6, targets=("to_q",), **settings).add_to_language_model(model, ["model"])
    stir(model)
    layer: Any = model.model["to_q"]
    rows = [[0.0] * frozen.shape[1] for _ in frozen]
    first, second = layer.lora_A["default"].weight.tolist(), layer.lora_B["default"].weight.tolist()
    for out in range(frozen.shape[0]):
        for column in range(frozen.shape[1]):
            product = sum(second[out][rank] * first[rank][column] for rank in range(4))
            rows[out][column] = float(frozen[out, column]) + scale * product
        if settings.get("use_dora"):
            length = sum(value * value for value in rows[out]) ** 0.5
            trained = layer.lora_magnitude_vector["default"].weight[out].item()
            rows[out] = [trained * value / length for value in rows[out]]
    states, bias = torch.randn(3, frozen.shape[1]), layer.get_base_layer().bias
    torch.testing.assert_close(layer(states), states @ torch.tensor(rows).T + bias, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_policy_is_the_base_bit_for_bit_and_the_reference_stays_it(dtype: torch.dtype) -> None:
    policy = adapted(dtype=dtype, **DORA)
    base = log_probs(vision_twins.policy(lora=Lora(rank=4), dtype=dtype))  # whose second factors are 0
    assert any("lora_magnitude" in name for name in policy.weights.parameters)
    assert all(tensor.dtype == torch.float32 for tensor in policy.weights.parameters.values())
    assert torch.equal(log_probs(policy), base)
    stir(policy._model)
    assert (log_probs(policy) - base).abs().max() > 1e-2
    with policy.weights("reference"):
        assert torch.equal(log_probs(policy), base)


@pytest.mark.slow
def test_merged_rollouts_are_the_same_and_the_weights_come_back_where_they_were() -> None:
    apart, merging = adapted(**DORA), adapted(merge_rollouts=True, **DORA)
    stir(apart._model)
    stir(merging._model)
    merged: Any = merging._merged
    before = {name: (tensor.detach().clone(), tensor.data_ptr()) for name, tensor in merging._model.named_parameters()}
    layer = adapter_layers(merging._model)[0]
    with merged():
        assert layer.merged and layer.get_base_layer().weight.data_ptr() == before_pointer(before, merging, layer)
        torch.testing.assert_close(log_probs(merging), log_probs(apart), atol=1e-5, rtol=0)
    for name, tensor in merging._model.named_parameters():
        values, pointer = before[name]
        assert torch.equal(tensor, values) and tensor.data_ptr() == pointer
    one, other = (vision_twins.rollout(policy, 6).trace.completions for policy in (apart, merging))
    assert torch.equal(one.tokens, other.tokens)


def before_pointer(before: dict[str, tuple[Tensor, int]], policy: VisionLanguage, layer: Any) -> int:
    weight = layer.get_base_layer().weight
    (name,) = [name for name, tensor in policy._model.named_parameters() if tensor is weight]
    return before[name][1]


@pytest.mark.slow
def test_all_tensors_of_a_dora_learn_and_copies_and_averages_hold_its_lengths() -> None:
    policy = adapted(**DORA)
    stir(policy._model)
    policy.weights.keep("averaged")
    found = vision_twins.rollout(policy, 6)
    values = policy.forward(found, DecisionView(torch.arange(9))).values
    names = [name for name in policy.weights.parameters if "language_model" in name]
    trained = [policy.weights.parameters[name] for name in names]
    grads = torch.autograd.grad((values * torch.linspace(-1, 1, 9)[:, None]).sum(), trained)
    assert all(bool(gradient.any()) for gradient in grads if gradient.shape)
    before = log_probs(policy)
    for tensor in policy.weights.parameters.values():
        tensor.data.mul_(1.5)
    assert (log_probs(policy) - before).abs().max() > 1e-3
    with policy.weights("averaged"):
        assert torch.equal(log_probs(policy), before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_peft_and_a_further_run_load_the_export(dtype: torch.dtype, tmp_path: Path) -> None:
    from peft import PeftModel

    policy = adapted(dtype=dtype, **DORA)
    stir(policy._model)
    policy.export(tmp_path)
    again = adapted(path=str(tmp_path), dtype=dtype, **DORA)
    assert torch.equal(log_probs(again), log_probs(policy))
    if dtype == torch.bfloat16:
        return
    plain = vision_twins.policy(lora=Lora(rank=1))
    plain._model.delete_adapter("default")
    by_peft: Any = PeftModel.from_pretrained(plain._model, str(tmp_path))
    assert by_peft.peft_config["default"].use_dora and by_peft.peft_config["default"].use_rslora
    torch.testing.assert_close(log_probs(plain), log_probs(policy), atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["use_dora", "use_rslora"])
def test_a_loaded_adapter_of_another_kind_than_set_is_refused(name: str, tmp_path: Path) -> None:
    adapted().export(tmp_path)
    with pytest.raises(ConfigError, match=rf"lora\.{name}: the adapter of lora\.path has False, and True is set"):
        adapted(path=str(tmp_path), **{name: True})


def test_dora_of_experts_and_with_an_engine_is_refused_and_rslora_of_experts_is_not() -> None:
    given: dict[str, Any] = {"rank": 4, "targets": ("experts.down_proj",)}
    with pytest.raises(ConfigError, match=r"lora\.use_dora: not for packed weights of experts, as '.*down_proj'"):
        Lora(use_dora=True, **given).add_to_language_model(expert_model(), ["model"])
    model = expert_model()
    Lora(use_rslora=True, alpha=6, **given).add_to_language_model(model, ["model"])
    assert adapter_layers(model)[0].scaling["default"] == 6 / 2
    engine = Vllm(name="vllm", url="http://localhost:1")
    with pytest.raises(ValueError, match=r"lora\.use_dora: vLLM serves no DoRA"):
        VisionLanguage(model="x/y", lora=Lora(use_dora=True), engine=engine)
    VisionLanguage(model="x/y", lora=Lora(use_rslora=True), engine=engine)
