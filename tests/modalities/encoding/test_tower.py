"""Features of images made ahead of the forward pass, and kept where the tower is frozen, change no update."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError, Keeping
from mmrl.modalities.encoding.inputs import runs
from mmrl.modalities.encoding.segment_attention import NAME
from mmrl.modalities.encoding.tower import KeptFeatures, makes_features
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.tokens.attention import FLEX, SEGMENTS, Attention
from mmrl.modalities.vision_language import VisionLanguage
from tests import vision_twins
from tests.modalities.test_vision_language_sharing import assert_equal, evaluated, ragged

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
CALLS = torch.arange(9)
WITH_IMAGES = 2  # of the twins' prompts


def adapted(family: str = "qwen2_5_vl", **settings: Any) -> VisionLanguage:
    """A policy with a frozen tower and an adapter of noise on its language model."""
    policy = vision_twins.policy(family, vision="frozen", lora=Lora(rank=2, alpha=4), **settings)
    generator = torch.Generator().manual_seed(3)
    for name, tensor in policy.weights.tensors("trained").items():
        if "lora_B" in name:  # zero at the start
            tensor.normal_(0.0, 0.3, generator=generator)
    return policy


@contextmanager
def counted(policy: VisionLanguage) -> Iterator[list[int]]:
    """Counts the passes of the tower."""
    passes = [0]
    model: Any = policy.modules()["model"]

    def count(*_given: Any) -> None:
        passes[0] += 1

    handle = model.model.visual.register_forward_pre_hook(count)
    try:
        yield passes
    finally:
        handle.remove()


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["cache", "packed", "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_features_made_ahead_give_the_update_of_the_networks_own(family: str, sharing: str) -> None:
    """Of a trained tower, with its gradients."""
    policy = vision_twins.policy(family, sharing=sharing)
    drawn = ragged(vision_twins.rollout(policy))
    found = evaluated(policy, drawn, CALLS)
    assert policy.backbone.tower is not None and policy.backbone.tower.kept is None
    policy._tower = None
    assert_equal(found, evaluated(policy, drawn, CALLS))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_kept_features_change_no_bit_of_an_update(family: str) -> None:
    results = []
    for kept in (2.0, 0.0):
        policy = adapted(family, kept_features_gb=kept)
        drawn = ragged(vision_twins.rollout(policy))
        results.append({**evaluated(policy, drawn, CALLS), "tokens": drawn.trace.completions.tokens})
    assert results[0].keys() == results[1].keys()
    assert all(torch.equal(tensor, results[1][name]) for name, tensor in results[0].items())


@pytest.mark.slow
def test_a_frozen_tower_runs_once_for_all_small_prompts_and_never_again() -> None:
    policy = adapted()
    with counted(policy) as passes:
        drawn = ragged(vision_twins.rollout(policy))
        for which in ("trained", "reference", "trained"):
            with policy.weights(which):
                evaluated(policy, drawn, CALLS) if which == "trained" else policy.recompute(drawn, 2)
    assert passes == [1]


@pytest.mark.slow
def test_prompts_share_a_pass_up_to_so_many_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    policies = [adapted(), adapted()]
    found = []
    for policy, most in zip(policies, (2**14, 20), strict=True):  # 16 patches and three times 16
        monkeypatch.setattr("mmrl.modalities.encoding.tower._PASS", most)
        with counted(policy) as passes:
            found.append((passes, vision_twins.rollout(policy).trace.completions.log_prob))
    assert [passes for passes, _ in found] == [[1], [WITH_IMAGES]]
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-5, rtol=0)
    assert runs([5, 9, 7, 40, 1], 20) == [range(2), range(2, 3), range(3, 4), range(4, 5)] and not runs([], 20)


@pytest.mark.slow
def test_features_are_freed_when_they_are_forgotten_and_made_again() -> None:
    policy = adapted()
    assert isinstance(policy, Keeping)
    drawn = vision_twins.rollout(policy)
    assert policy._tower is not None and policy._tower.kept is not None
    kept = policy._tower.kept
    tokens = sum(int((prompt.token_types > 0).sum()) for prompt in drawn.trace.prompts)
    assert kept.size == 4 * tokens * policy.backbone.model.config.get_text_config().hidden_size  # float32
    policy.forget()
    assert kept.size == 0 and not kept._kept
    with counted(policy) as passes:
        policy.recompute(drawn, 9)
    assert passes == [1]


@pytest.mark.slow
def test_no_more_is_kept_than_the_bytes_allow() -> None:
    policy = adapted()
    drawn = vision_twins.rollout(policy)
    tower = policy._tower
    assert tower is not None and tower.kept is not None
    made = [tower.kept.of(prompt, "image") for prompt in drawn.trace.prompts]
    sizes = [features.size for features in made if features is not None]
    small = KeptFeatures(max(sizes))
    for prompt, features in zip(drawn.trace.prompts, made, strict=True):
        if features is not None:
            small.keep(prompt, "image", features)
    assert len(sizes) == WITH_IMAGES and small.size in sizes and len(small._kept) == 1


@pytest.mark.slow
def test_a_tower_that_is_trained_or_adapted_keeps_nothing() -> None:
    for lora in (None, Lora(rank=2, alpha=4)):
        policy = vision_twins.policy(lora=lora, vision="trained")
        vision_twins.rollout(policy)
        policy.forget()
        assert policy._tower is not None and policy._tower.kept is None


@pytest.mark.slow
def test_towers_of_other_families_run_in_the_networks_own_pass() -> None:
    policy = vision_twins.policy("gemma3", vision="frozen")
    assert not makes_features(policy.backbone.model) and policy.backbone.tower is None
    policy.forget()


@pytest.mark.slow
def test_windows_are_attended_to_in_one_call_unless_sdpa_is_set_for_the_tower() -> None:
    settings: list[tuple[Any, str]] = [
        (None, NAME),
        ("sdpa", NAME),
        ("eager", "eager"),
        (Attention(tower=SEGMENTS), NAME),
        (Attention(tower="sdpa"), "sdpa"),
        (Attention(tower="eager", update="sdpa"), "eager"),
    ]
    for setting, expected in settings:
        config = vision_twins.policy(attention=setting).backbone.model.config
        assert config.vision_config._attn_implementation == expected, setting
        assert config.get_text_config()._attn_implementation == ("eager" if setting == "eager" else "sdpa")


@pytest.mark.slow
def test_towers_give_the_same_update_window_by_window() -> None:
    policy = vision_twins.policy(attention=Attention(tower="sdpa"))
    drawn = ragged(vision_twins.rollout(policy))
    found = evaluated(vision_twins.policy(), drawn, CALLS)
    assert_equal(found, evaluated(policy, drawn, CALLS))


@pytest.mark.slow
def test_rollouts_run_an_attention_of_their_own() -> None:
    policy = vision_twins.policy(attention=Attention(update="sdpa", rollout="eager"))
    text = policy.backbone.model.config.get_text_config()
    seen: list[str] = []
    policy.backbone.network.register_forward_pre_hook(lambda *_given: seen.append(text._attn_implementation))
    drawn = vision_twins.rollout(policy)
    assert set(seen) == {"eager"} and text._attn_implementation == "sdpa"
    seen.clear()
    evaluated(policy, drawn, CALLS)
    assert set(seen) == {"sdpa"}


def test_rollouts_do_not_run_flex_attention() -> None:
    policy = vision_twins.policy()
    text = policy.backbone.model.config.get_text_config()
    text._attn_implementation = FLEX
    with Attention.of(FLEX).sampling(policy.backbone.model):
        assert text._attn_implementation == "sdpa"
    assert text._attn_implementation == FLEX


def test_an_attention_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"modality\.attention\.tower: segments does not fit .*gemma3 has none"):
        vision_twins.policy("gemma3", attention=Attention(tower=SEGMENTS))
    with pytest.raises(ConfigError, match=r"modality\.attention\.rollout: 'flash' cannot be used"):
        vision_twins.policy(attention=Attention(rollout="flash"))
    for part in ("tower", "rollout"):
        with pytest.raises(ValueError, match=f"{part} cannot be flex_attention: it is for packed rows"):
            Attention(**{part: FLEX})


def test_names_of_one_text_are_the_attention_of_all_parts() -> None:
    assert Attention.of("eager") == Attention(tower="eager", update="eager")
    assert Attention.of("flash_attention_2").loaded == "flash_attention_2"
    assert Attention.of(FLEX) == Attention(update=FLEX) and Attention.of(FLEX).loaded is None
    assert Attention.of(None) == Attention()
