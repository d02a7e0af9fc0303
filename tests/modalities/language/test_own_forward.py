"""A type of model that no test runs is used where it agrees with its own forward pass, and refused elsewhere."""

import json
import logging
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.views import DecisionView
from mmrl.modalities import vision_language
from mmrl.modalities.encoding.families import FAMILIES, is_tested, types_with_tests
from mmrl.modalities.encoding.inputs import EncodedPrompt, messages_of
from mmrl.modalities.encoding.prompt_encoder import PromptEncoder
from mmrl.modalities.gui import Gui
from mmrl.modalities.language import own_forward, probing
from mmrl.modalities.language.probes import IMAGES
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.tiny.vision_language import BUILDERS, UNLISTED
from mmrl.modalities.tokens import prefix_cache
from mmrl.modalities.tokens.backbone import Backbone, expand
from mmrl.modalities.tokens.vllm.engine import Vllm
from mmrl.modalities.video import Video
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.plans.answers import AnswerPlan
from tests import vision_twins
from tests.vision_twins import picture
from tests.vision_twins import twin as unlisted

# how each of the 20 twins shares prompts, in an update and under checkpointing, and what was asked of it
EXACT = {
    "llava_next": ("cache", "packed"),
    "paligemma": ("cache", "packed"),
    "gemma4_ahead": ("cache", "packed"),
    "molmo2": ("cache", "packed"),
    "aya_vision": ("cache", "packed"),
    "ovis2": ("cache", "packed"),
    "granite4_vision": ("cache", "packed"),
    "minicpmv4_7": ("cache", "none"),
    "llama4": ("cache", "none"),
    "qwen3_5": ("cache", "none"),
    "qwen3_5_moe": ("cache", "none"),
    "lfm2_vl": ("cache", "none"),
    "qwen3_vl_moe": ("cache", "packed"),
    "glm46v": ("cache", "packed"),
    "glm4v": ("cache", "packed"),
    "gemma4": ("cache", "packed"),
    "mistral3": ("cache", "packed"),
    "kimi_k25": ("cache", "packed"),
    "janus": ("cache", "packed"),
    "aria": ("cache", "packed"),
}
PROMPTS = (
    Prompt("click the <image> box", (picture(60, 40, 1),)),
    Prompt("<image> what is on the left of the blue box, and what is it above?", (picture(40, 56, 2),)),
)
CPU = torch.device("cpu")
# processors of PaliGemma and GLM hand tensors to numpy
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def some_of(families: Any, *kept: str) -> list[Any]:
    """The kept ones, and the others marked: a twin takes a second and more."""
    return [family if family in kept else pytest.param(family, marks=pytest.mark.exhaustive) for family in families]


def prepared(
    folder: Path, kind: type[VisionLanguage] = VisionLanguage, dtype: torch.dtype = torch.float32, **settings: Any
) -> VisionLanguage:
    policy = kind(**{"model": str(folder), "vision": "trained"} | settings)
    policy.prepare(Placement(CPU, dtype))
    return policy


def untested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken for tested, so that twins that are small and fast are compared too."""
    for module in (own_forward, vision_language):
        monkeypatch.setattr(module, "is_tested", lambda config: False)


def plain_log_probs(
    policy: VisionLanguage, rollout: Rollout, sample: int, prompts: Sequence[Prompt] = PROMPTS
) -> Tensor:
    """[T] by transformers alone: processor and forward pass of one row [prompt, answer]."""
    model, processor = policy.encoder.model, policy.encoder.processor
    messages = messages_of(prompts[int(rollout.prompt[sample])], "{prompt}", None)
    given = processor.apply_chat_template(
        messages, tokenize=True, return_dict=True, add_generation_prompt=True, return_tensors="pt"
    )
    length, width = int(rollout.trace.completions.length[sample]), given["input_ids"].shape[1]
    answer = rollout.trace.completions.tokens[sample, :length][None]
    ends = {"input_ids": answer, "attention_mask": torch.ones_like(answer)}
    kind = int(model.config.model_type == "paligemma")  # of its answers
    ends |= {name: torch.full_like(answer, kind) for name in given if name.endswith("token_type_ids")}
    given = {name: value for name, value in given.items() if name not in ("labels", "text_replacement_offsets")}
    given = {name: value.float() if value.is_floating_point() else value for name, value in given.items()}
    row = {name: torch.cat([value, ends[name]], 1) if name in ends else value for name, value in given.items()}
    network = model.model if hasattr(model, "model") else model
    if hasattr(network, "rope_deltas"):
        network.rope_deltas = None
    with torch.no_grad():
        logits = model(**row, use_cache=False).logits[0, width - 1 : width - 1 + length]
    logits[:, list(policy.banned)] = -torch.inf
    log_prob: Tensor = logits.log_softmax(1).gather(1, answer[0][:, None])[:, 0]
    return log_prob


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", some_of(EXACT, "gemma4_ahead", "paligemma", "molmo2", "llama4", "minicpmv4_7", "ovis2")
)
def test_an_unlisted_family_that_agrees_is_used_and_does(family: str) -> None:
    policy = prepared(unlisted(family))
    assert not is_tested(policy.encoder.model.config)
    assert policy.sharing_mode == EXACT[family][0]
    rollout = policy.rollout(PROMPTS, [AnswerPlan(2, 6)] * 2, [GroupKey(1, 0, n) for n in range(2)])
    with torch.no_grad():
        evaluated = policy.forward(rollout, DecisionView(torch.arange(4))).values
    for sample in range(4):
        expected = plain_log_probs(policy, rollout, sample)
        for found in (rollout.trace.completions.log_prob, evaluated):
            torch.testing.assert_close(found[sample, : len(expected)], expected, atol=3e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["packed", "cache"])
def test_a_window_of_all_layers_is_kept_behind_longer_prompts(tmp_path: Path, sharing: str) -> None:
    """Mistral's, whose layers have no names; longer than the prompts that are compared at load."""
    shutil.copytree(unlisted("mistral3"), tmp_path / "twin")
    config = json.loads((tmp_path / "twin" / "config.json").read_text("utf-8"))
    config["text_config"]["sliding_window"] = 60
    (tmp_path / "twin" / "config.json").write_text(json.dumps(config), "utf-8")
    policy = prepared(tmp_path / "twin", sharing=sharing)
    prompts = (PROMPTS[0], replace(PROMPTS[1], text=PROMPTS[1].text + " And what is it?" * 12))
    shortest, longest = sorted(len(prompt.tokens) for prompt in policy.encode(prompts))
    compared = max(len(prompt.tokens) for prompt in policy.encode(IMAGES))
    assert policy.sharing_mode == sharing and shortest + 6 < 60 > compared + own_forward.MAX_TOKENS and longest > 60
    rollout = policy.rollout(prompts, [AnswerPlan(2, 6)] * 2, [GroupKey(1, 0, n) for n in range(2)])
    with torch.no_grad():
        evaluated = policy.forward(rollout, DecisionView(torch.arange(4))).values
    for sample in range(4):
        expected = plain_log_probs(policy, rollout, sample, prompts)
        for found in (rollout.trace.completions.log_prob, evaluated):
            torch.testing.assert_close(found[sample, : len(expected)], expected, atol=3e-5, rtol=0)


def _one_later(encoder: PromptEncoder, prompt: Prompt) -> EncodedPrompt:
    """A fault: answers begin one position too late."""
    encoded = ENCODE(encoder, prompt)
    return replace(encoded, next_position=encoded.next_position + 1)


ENCODE = PromptEncoder._encode
FAULTS: dict[str, tuple[str, Any, str, Any]] = {
    "positions off by one": ("llava_next", PromptEncoder, "_encode", _one_later),
    "kinds of tokens not handed on": ("gemma4_ahead", vision_language, "kinds_name", lambda model: None),
    "an answer of the prompt's kind": ("paligemma", probing, "answer_kind", lambda *given: 0),
    "media joined as it comes": ("molmo2", probing, "joining_axes", lambda *given: {}),
    "a scale that is declared": ("aya_vision", vision_language, "probed_head", lambda model, declared, given: declared),
}


@pytest.mark.slow  # a second and more each
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_refused_with_the_number_of_nats(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, owner, name, broken = FAULTS[fault]
    monkeypatch.setattr(owner, name, broken)
    if fault == "media joined as it comes":  # which is read one at a time after that
        assert prepared(unlisted(family)).backbone.one_at_a_time
        return
    with pytest.raises(
        ConfigError, match=r"^modality\.model: .*, which no test of mmrl runs, and the log-probs of"
    ) as told:
        prepared(unlisted(family))
    message = str(told.value)
    found = re.search(
        r"differ from its own forward pass by (\S+) nats a token, up to (\S+), in answers of ([a-z ]+) \(", message
    )
    assert found is not None and found[3] == "words"
    mean, most = float(found[1]), float(found[2])
    assert 0.005 < mean < most < 5
    assert f"a model of type {family.removesuffix('_ahead')!r}" in message
    assert "Types that tests run are qwen2_5_vl, qwen2_vl, qwen3_vl, internvl (with qwen2)" in message


@pytest.mark.slow
def test_an_unlisted_family_that_raises_is_refused_with_what_it_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **more: Any) -> None:
        raise TypeError("of theirs")

    monkeypatch.setattr(Backbone, "prefill", broken)
    with pytest.raises(ConfigError, match=r"of type 'llava_next' .*, and does not work here: TypeError: of theirs"):
        prepared(unlisted("llava_next"))


@pytest.mark.slow
def test_a_cache_that_is_silently_wrong_leads_to_plain_rows_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log-probs are right; its gradient does not reach the prompt."""

    def cut(cache: Any, rows: Tensor) -> Any:
        copied = expand(cache, rows)
        for layer in copied.layers:
            layer.keys, layer.values = layer.keys.detach(), layer.values.detach()
        return copied

    monkeypatch.setattr(prefix_cache, "expand", cut)
    policy = prepared(unlisted("llava_next"), sharing="cache")
    told = r"none \(cache is off by \S+ nats a token and (\S+) of a gradient \(up to "
    assert (found := re.match(told, policy.sharing_used)) is not None and float(found[1]) > 0.05
    assert "a group of 8 answers computes its prompt 8 times" in caplog.text
    assert prepared(unlisted("llava_next")).sharing_mode == "packed"  # the next of the ways
    values = []
    rollout = policy.rollout(PROMPTS, [AnswerPlan(2, 4)] * 2, [GroupKey(1, 0, n) for n in range(2)])
    for one in (policy, prepared(unlisted("llava_next"), sharing="none")):
        with torch.no_grad():
            values.append(one.forward(rollout, DecisionView(torch.arange(4))).values)
    assert torch.equal(*values)


@pytest.mark.slow
def test_a_packed_row_that_is_wrong_is_not_used_under_checkpointing() -> None:
    policy = prepared(unlisted("qwen3_5"), gradient_checkpointing=True)
    assert policy.sharing_mode == "none" and policy.sharing_used.startswith("none (packed is off by ")


def test_every_twin_is_in_the_list() -> None:
    assert sorted(UNLISTED) == sorted(EXACT) and len(EXACT) == 20


@pytest.mark.slow
def test_tested_are_the_types_of_the_twins_and_of_their_language_models() -> None:
    configs = {family: AutoConfig.from_pretrained(vision_twins.twin(family)) for family in BUILDERS}
    assert all(is_tested(config) for config in configs.values())
    assert {family.name for family in FAMILIES if family.language is not None} == set(BUILDERS)
    assert len(types_with_tests()) == len(BUILDERS) and {"gemma3", "idefics3 (with llama)"} < set(types_with_tests())
    for kind, language in (("internvl", "qwen3"), ("smolvlm", "llama"), ("paligemma", "gemma")):
        other = SimpleNamespace(model_type=kind, get_text_config=lambda name=language: SimpleNamespace(model_type=name))
        assert not is_tested(other)


@pytest.mark.slow
def test_tested_types_are_not_compared_and_their_errors_are_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> None:
        raise AttributeError("of ours")

    monkeypatch.setattr(own_forward, "_compare", broken)
    prepared(vision_twins.twin("qwen2_5_vl"))
    monkeypatch.setattr(VisionLanguage, "_set_up", broken)
    with pytest.raises(AttributeError, match="of ours"):
        prepared(vision_twins.twin("qwen2_5_vl"))


def test_a_full_memory_is_not_told_as_a_type_that_does_not_work() -> None:
    config = SimpleNamespace(model_type="new", get_text_config=lambda: SimpleNamespace(model_type="text"))
    with pytest.raises(torch.OutOfMemoryError), own_forward.refusing_errors("me/new", config):
        raise torch.OutOfMemoryError("tried to allocate")
    told = r"'me/new' is a model of type 'new' .*: StopIteration: "
    with pytest.raises(ConfigError, match=told), own_forward.refusing_errors("me/new", config):
        next(iter(()))


@pytest.mark.slow
def test_a_comparison_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    untested(monkeypatch)
    policy = VisionLanguage(model=str(vision_twins.twin("qwen2_vl")), max_prompt_tokens=5)
    state = torch.get_rng_state()

    def most(count: int) -> int:
        raise AssertionError("processes are not asked for their counts")

    policy.prepare(Placement(CPU, torch.float32, most))
    assert torch.equal(torch.get_rng_state(), state)
    model = policy.encoder.model
    assert policy.num_calls == 0 and policy.encoder._kept == {} and policy.encoder.max_tokens == 5
    assert not model.get_input_embeddings()._forward_hooks and not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert policy._placement is not None and policy._placement.maximum is most


@pytest.mark.slow  # most of a second each, or more
def test_a_path_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    untested(monkeypatch)
    folder, go_on, hidden = vision_twins.twin("llava_onevision"), Backbone.continue_from_cache, Backbone.hidden
    with monkeypatch.context() as patch:  # a cache that counts one position too many: with rows only rollouts have one
        patch.setattr(
            Backbone, "continue_from_cache", lambda own, *given: go_on(own, given[0], given[1], given[2] + 1, given[3])
        )
        with pytest.raises(ConfigError, match="log-probs of rollouts differ"):
            prepared(folder, sharing="none")
        prepared(folder, sharing="none", engine=Vllm(name="vllm", url="http://127.0.0.1:9"))  # which draws instead
    with monkeypatch.context() as patch:
        patch.setattr(Backbone, "hidden", lambda own, *given, **more: hidden(own, *given, **more) + 0.01)
        with pytest.raises(ConfigError, match="log-probs of updates differ"):
            prepared(folder)


@pytest.mark.slow
def test_log_probs_that_are_no_numbers_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    untested(monkeypatch)
    broken = {"rollouts": lambda *given: torch.tensor(float("nan"))}
    monkeypatch.setattr(own_forward, "_PATHS", own_forward._PATHS | broken)
    with pytest.raises(ConfigError, match="differ from its own forward pass by nan nats"):
        prepared(vision_twins.twin("llava_onevision"))


@pytest.mark.slow
def test_answers_hold_words_and_the_special_tokens_that_may_stand_there() -> None:
    policy = vision_twins.policy("qwen3_vl")
    tokenizer = policy.encoder.processor.tokenizer
    found = own_forward._answers(policy, tokenizer, policy.encode(IMAGES))
    ends = ["<|im_end|>"]
    texts = {what: [tokenizer.convert_ids_to_tokens(row.tolist()) for row in rows] for what, rows in found.items()}
    assert texts["special tokens"] == [["<|im_start|>", "<think>", "</think>", *ends], ["<|im_start|>", *ends]]
    assert [len(row) for row in texts["words"]] == [24, 12] and texts["words"][0][:3] == ["O", "n", "\u0120the"]


@pytest.mark.slow  # loads and compares models again
def test_rounding_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    untested(monkeypatch)
    prepared(vision_twins.twin("llava_onevision"), dtype=torch.bfloat16, lora=Lora(rank=2, alpha=4))


@pytest.mark.exhaustive  # 26 twins
def test_in_low_precision_the_same_families_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = torch.bfloat16
    for family in EXACT:
        targets = ("q_proj",) if family == "llama4" else None  # its router is a Linear that returns two tensors
        prepared(unlisted(family), dtype=dtype, lora=Lora(rank=2, alpha=4, targets=targets))
    untested(monkeypatch)
    for family in BUILDERS:
        prepared(vision_twins.twin(family), dtype=dtype, gradient_checkpointing=True)


@pytest.mark.slow
def test_the_type_of_an_answers_tokens_is_the_one_that_keeps_them_from_seeing_ahead() -> None:
    """Gemma 3: 1 is an image, which sees itself as a whole. PaliGemma: 1 is an answer, 0 sees the whole prompt."""
    answer = torch.tensor([50, 51, 52, 53, 54])

    class Prefix(torch.nn.Module):
        """Logits that tell of all tokens of type 0, and of those of type 1 that stand before."""

        model = None

        def forward(self, input_ids: Tensor, token_type_ids: Tensor, **given: Any) -> Any:
            is_seen = torch.ones(input_ids.shape[1], input_ids.shape[1]).tril().bool() | (token_type_ids[0] == 0)
            return SimpleNamespace(logits=(is_seen * input_ids).sum(1).float()[None, :, None].expand(-1, -1, 9))

    given = {"input_ids": torch.tensor([[1, 2]]), "token_type_ids": torch.tensor([[0, 0]])}
    policy = vision_twins.policy("gemma3")
    assert own_forward._OwnForward(policy, Prefix(), [])._kind(given, answer) == 1
    own = policy.encoder.processed(IMAGES[0])
    assert "token_type_ids" in own and "labels" not in own
    assert own_forward._OwnForward(policy, policy.encoder.model, [])._kind(own, answer) == 0


@pytest.mark.slow
def test_a_policy_of_videos_is_compared_on_a_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    untested(monkeypatch)
    seen: list[Prompt] = []
    compare = own_forward.refuse_other_log_probs

    def counted(policy: VisionLanguage, model: str, encoder: PromptEncoder, prompts: Sequence[Prompt]) -> None:
        seen.extend(prompts)
        compare(policy, model, encoder, prompts)

    monkeypatch.setattr(vision_language, "refuse_other_log_probs", counted)
    prepared(vision_twins.twin("qwen3_vl"), Video, frame_min_pixels=28 * 28, frame_max_pixels=56 * 56)
    assert [(len(prompt.clips), len(prompt.media)) for prompt in seen] == [(1, 0), (0, 1)]


@pytest.mark.slow  # loads and compares models again
def test_a_precision_that_hides_what_others_got_wrong_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    untested(monkeypatch)
    with caplog.at_level(logging.WARNING):
        prepared(vision_twins.twin("internvl"))
        assert not caplog.records
        monkeypatch.setattr(own_forward._OwnForward, "rounding", lambda *given: 0.1)
        prepared(vision_twins.twin("internvl"))
    assert "so far that 0.3 nats a token off its own forward pass would not be seen" in caplog.text


@pytest.mark.slow
def test_gui_asks_for_the_unit_of_coordinates_where_the_familys_is_not_known() -> None:
    folder = unlisted("ovis2")
    with pytest.raises(ConfigError, match=r"^modality\.coordinates: it is not known in which unit this model writes"):
        prepared(folder, Gui, dialect="plain")
    policy = prepared(folder, Gui, dialect="plain", coordinates="unit")
    encoded = policy.encode(PROMPTS)
    assert encoded[0].canvas is not None and encoded[0].canvas.convention == "unit"


@pytest.mark.slow
def test_what_a_family_reads_is_asked_and_not_taken_from_its_layer_of_features() -> None:
    """Granite 4 Vision names the layer before the last, and reads the last one, too."""
    policy = prepared(unlisted("granite4_vision"))
    model, trained = policy.encoder.model, policy.weights.parameters
    frozen = {name for name, _ in model.named_parameters()} - {name.removeprefix("model.") for name in trained}
    assert any(".vision_tower." in name and "layers.1." in name for name in trained)
    assert {name.split(".vision_tower.")[1] for name in frozen} == {"post_layernorm.weight", "post_layernorm.bias"}
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.slow
def test_a_frozen_tower_with_complex_numbers_computes_what_the_models_own_does() -> None:
    """The frequencies of Llama 4's tower are complex: a cast of the whole tower would drop their imaginary parts."""
    buffers = dict(prepared(unlisted("llama4"), vision="frozen").encoder.model.named_buffers())
    own: Any = AutoModelForImageTextToText.from_pretrained(unlisted("llama4"), dtype=torch.float32)
    assert any(buffer.is_complex() for name, buffer in own.named_buffers() if name.startswith("vision"))
    assert all(torch.equal(buffers[name], buffer) for name, buffer in own.named_buffers())


@pytest.mark.slow
def test_columns_of_tokens_that_an_answer_would_need_are_refused() -> None:
    told = r"the processor of type 'mllama' makes cross_attention_mask, with a column for each token of the prompt"
    with pytest.raises(ConfigError, match=told):
        prepared(unlisted("mllama"))


@pytest.mark.slow
def test_a_family_that_is_read_one_prompt_at_a_time_is_not_sharded() -> None:
    policy = VisionLanguage(model=str(unlisted("molmo2")))
    with pytest.raises(ConfigError, match=r"^sharding is 'full', but .* computes prompts one at a time"):
        policy.prepare(Placement(CPU, torch.float32, lambda count: count))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_vl_moe"])
def test_videos_of_an_unlisted_family_are_compared_too(family: str) -> None:
    policy = prepared(unlisted(family), Video, frame_min_pixels=28 * 28, frame_max_pixels=56 * 56)
    assert policy.sharing_mode == "cache" and not policy.backbone.one_at_a_time
