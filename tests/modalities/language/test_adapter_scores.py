"""Reward models on the policy's base: against transformers' and peft's own classes; the policy stays as it is."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Rollout
from mmrl.core.views import DecisionView
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.training.thought import ThoughtReader
from tests import vision_twins
from tests.modalities.loading.test_dora import log_probs, stir

FILE = "adapter_model.safetensors"


def policy_of(family: str = "qwen2_5_vl", **settings: Any) -> VisionLanguage:
    made = vision_twins.policy(family, **{"lora": Lora(rank=2, alpha=4), "vision": "frozen"} | settings)
    stir(made._model)
    return made


@pytest.fixture
def adapter(tmp_path: Path) -> str:
    """A random reward model for the twin of Qwen2.5-VL."""
    VisionLanguage(model=str(vision_twins.twin("qwen2_5_vl"))).write_tiny_adapter(3, tmp_path / "reward")
    return str(tmp_path / "reward")


def plain_scores(model: Any, head: Tensor, policy: VisionLanguage, rollout: Rollout) -> Tensor:
    """[B] by the model's own forward of each whole sample alone, without a cache and without positions."""
    scores = []
    for row in range(rollout.num_samples):
        prompt = rollout.trace.prompts[int(rollout.prompt[row])]
        length = int(rollout.trace.completions.length[row])
        tokens = torch.cat([prompt.tokens, rollout.trace.completions.tokens[row, :length]])[None]
        batch = policy.backbone.batch([prompt])
        kinds = torch.cat([batch.token_types, batch.token_types.new_zeros(1, length)], 1)
        with torch.no_grad():
            hidden = model(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                output_hidden_states=True,
                **prompt.media,
                **({} if policy.backbone.kinds is None else {policy.backbone.kinds: kinds}),
            ).hidden_states[-1]
        scores.append(hidden[0, -1] @ head)
    return torch.stack(scores)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("sharing", ["cache", "packed", "none"])
def test_scores_are_those_of_peft_on_a_base_of_its_own(sharing: Any, adapter: str) -> None:
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    policy = policy_of(sharing=sharing)
    rollout, before = vision_twins.rollout(policy, 8), policy.num_calls
    policy.load_reward_adapter(adapter)
    ours = policy.adapter_scores(rollout, adapter, 4)
    assert policy.num_calls == before + rollout.num_samples, "one call for each answer"
    base = AutoModelForImageTextToText.from_pretrained(str(vision_twins.twin("qwen2_5_vl")))
    settings = json.loads((Path(adapter) / "adapter_config.json").read_text())
    (Path(adapter) / "adapter_config.json").write_text(
        json.dumps(settings | {"modules_to_save": None, "task_type": None})
    )
    head = load_file(Path(adapter) / FILE)["base_model.model.score.weight"][0]
    theirs = PeftModel.from_pretrained(base, adapter).eval()
    torch.testing.assert_close(ours, plain_scores(theirs, head, policy, rollout), atol=1e-4, rtol=1e-4)
    assert ours.std() > 1e-2
    torch.testing.assert_close(policy.adapter_scores(rollout, adapter, 1), ours, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("use_dora", [False, True])
def test_a_classifier_of_transformers_saved_by_peft_scores_as_it_does_itself(use_dora: bool, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import Gemma3ForSequenceClassification

    torch.manual_seed(4)
    folder = vision_twins.twin("gemma3")
    classifier = Gemma3ForSequenceClassification.from_pretrained(str(folder), num_labels=1)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    config = LoraConfig(task_type="SEQ_CLS", r=3, lora_alpha=6, target_modules=targets, use_dora=use_dora)
    theirs: Any = get_peft_model(classifier, config)
    stir(theirs)
    for name, tensor in theirs.named_parameters():
        if "score.modules_to_save" in name:
            tensor.data.normal_()
    theirs.save_pretrained(str(tmp_path))
    policy = policy_of("gemma3")
    policy.load_reward_adapter(str(tmp_path))
    rollout = vision_twins.rollout(policy, 6)
    ours = policy.adapter_scores(rollout, str(tmp_path), 16)
    theirs.eval()
    expected = []
    for row in range(rollout.num_samples):
        prompt = rollout.trace.prompts[int(rollout.prompt[row])]
        length = int(rollout.trace.completions.length[row])
        tokens = torch.cat([prompt.tokens, rollout.trace.completions.tokens[row, :length]])[None]
        kinds = policy.backbone.batch([prompt]).token_types
        classifier.config.get_text_config().pad_token_id = None  # the last token is read, whatever it is
        classifier.config.pad_token_id = None
        with torch.no_grad():
            kinds = torch.cat([kinds, kinds.new_zeros(1, length)], 1)
            expected.append(theirs(input_ids=tokens, token_type_ids=kinds, **prompt.media).logits[0, 0])
    torch.testing.assert_close(ours, torch.stack(expected), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_the_policy_its_reference_its_rollouts_and_its_export_stay_as_they_were(adapter: str, tmp_path: Path) -> None:
    plain, policy = policy_of(), policy_of()
    policy.load_reward_adapter(adapter)
    policy.load_reward_adapter(adapter)  # a second reward by the same one
    assert list(policy._model.peft_config) == ["default", "reward_0"]
    found, expected = vision_twins.rollout(policy, 6), vision_twins.rollout(plain, 6)
    thought = ThoughtReader(4)(policy, found, {"texts", f"adapter.{adapter}", "likelihoods.trained"})
    assert thought.adapter_scores[adapter].shape == (9,) and "trained" in thought.likelihoods
    one, other = found.trace.completions, expected.trace.completions
    assert torch.equal(one.tokens, other.tokens) and torch.equal(one.log_prob, other.log_prob)
    trained = {name for name, tensor in policy._model.named_parameters() if tensor.requires_grad}
    assert trained == {name for name, tensor in plain._model.named_parameters() if tensor.requires_grad}
    assert policy.weights.parameters.keys() == plain.weights.parameters.keys()
    assert not policy._model.training and policy.adapted_tower == {}
    views = [one.forward(found, DecisionView(torch.arange(9))).values for one in (policy, plain)]
    grads = [
        torch.autograd.grad(values.sum(), [*one.weights.parameters.values()], allow_unused=True)
        for one, values in zip((policy, plain), views, strict=True)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True) if a is not None and b is not None)
    with policy.weights("reference"), plain.weights("reference"):
        assert torch.equal(log_probs(policy), log_probs(plain))
    policy.export(tmp_path / "ours")
    plain.export(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / name / FILE) for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
def test_scores_do_not_move_with_the_policy_and_merging_leaves_the_reward_model_out(adapter: str) -> None:
    policy = policy_of(lora=Lora(rank=2, alpha=4, merge_rollouts=True))
    policy.load_reward_adapter(adapter)
    rollout = vision_twins.rollout(policy, 6)
    before = policy.adapter_scores(rollout, adapter, 16)
    for tensor in policy.weights.parameters.values():
        tensor.data.mul_(3)
    assert torch.equal(policy.adapter_scores(rollout, adapter, 16), before)
    plain = policy_of(lora=Lora(rank=2, alpha=4, merge_rollouts=True))
    assert torch.equal(vision_twins.rollout(plain, 6).trace.completions.tokens, rollout.trace.completions.tokens)


@pytest.mark.slow
def test_an_adapter_of_the_vision_tower_reads_its_own_features(tmp_path: Path) -> None:
    from mmrl.modalities.language.adapter_scores import write_tiny_adapter

    source = vision_twins.policy(lora=None)
    write_tiny_adapter(source._model, "model.visual", 5, tmp_path)
    kept, fresh = policy_of(), policy_of(kept_features_gb=0)
    rollout = vision_twins.rollout(kept, 6)
    for policy in (kept, fresh):
        policy.load_reward_adapter(str(tmp_path))
    ours, theirs = (policy.adapter_scores(rollout, str(tmp_path), 16) for policy in (kept, fresh))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    named = load_file(tmp_path / FILE)
    silent = {name: torch.zeros_like(tensor) if "lora_B" in name else tensor for name, tensor in named.items()}
    (tmp_path / "off").mkdir()
    save_file(silent, tmp_path / "off" / FILE, {"format": "pt"})
    (tmp_path / "off" / "adapter_config.json").write_bytes((tmp_path / "adapter_config.json").read_bytes())
    kept.load_reward_adapter(str(tmp_path / "off"))
    moved = (kept.adapter_scores(rollout, str(tmp_path / "off"), 16) - ours).abs()
    assert moved[:3].max() == 0 and moved[3:].min() > 0, "the first prompt has no image"


@pytest.mark.slow
def test_what_is_no_reward_model_of_this_base_is_refused(adapter: str) -> None:
    def refused(match: str, path: str = adapter, **settings: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            policy_of(**settings).load_reward_adapter(path)

    named, file = load_file(Path(adapter) / FILE), Path(adapter) / FILE
    refused("whose weights are all trained; set lora", lora=None)
    refused(r"cannot load it .*; allowed are a hub name", path=f"{adapter}/nowhere")
    head = named.pop("base_model.model.score.weight")
    save_file(named, file, {"format": "pt"})
    refused(r"no head in its file, which must hold one of score\.weight, v_head")
    save_file(named | {"score.weight": head.repeat(2, 1)}, file, {"format": "pt"})
    refused(r"its head must give one number, got \[2, 32\]")
    save_file(named | {"score.weight": head[:, :5].contiguous()}, file, {"format": "pt"})
    refused("its head reads 5 numbers, the policy has 32")
    name = next(one for one in named if "lora_A" in one)
    save_file({**named, "score.weight": head, name: named[name][:, :3].contiguous()}, file, {"format": "pt"})
    refused(rf"'{name}' has shape \[2, 3\], needed is \[2, ")
    save_file({key: one for key, one in named.items() if key != name} | {"score.weight": head}, file, {"format": "pt"})
    refused(rf"not for the policy's model: 1 names differ, such as '{name}'")


def test_a_value_head_with_a_bias_is_read(adapter: str) -> None:
    from mmrl.modalities.language.adapter_scores import RewardAdapters

    file = Path(adapter) / FILE
    named = load_file(file)
    head = named.pop("base_model.model.score.weight")
    save_file(
        named | {"v_head.summary.weight": head, "v_head.summary.bias": torch.tensor([7.0])}, file, {"format": "pt"}
    )
    rewards = RewardAdapters(policy_of()._model)
    rewards.add(adapter)
    torch.testing.assert_close(rewards.scores(adapter, torch.ones(2, head.shape[1])), (head.sum() + 7).repeat(2))
