"""Answers that begin alike are read and evaluated once, as if each stood alone."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.data import Rollout, count_calls
from mmrl.core.views import DecisionView
from mmrl.modalities.tokens.trace import answer_block
from mmrl.modalities.vision_language import VisionLanguage
from tests.modalities.grown_trees import PLANS, everything, tree, twin


def gradients(policy: VisionLanguage, rollout: Rollout, weight: Tensor, view: DecisionView) -> dict[str, Tensor]:
    """Log-probs and entropies, and the gradient of a weighted sum of both."""
    policy.modules()["model"].zero_grad()
    found = policy.forward(rollout, view)
    assert found.entropy is not None
    (found.values * weight + found.entropy * weight.flip(1)).sum().backward()
    reached = {name: p.grad.clone() for name, p in policy.weights.parameters.items() if p.grad is not None}
    return {"log_prob": found.values.detach(), "entropy": found.entropy.detach()} | reached


@cache
def leaf_by_leaf(family: str, kind: str) -> tuple[Rollout, Tensor, dict[str, Tensor]]:
    """A tree, weights of its edges, and what the plain batch makes of its leaves, each one alone."""
    rollout = tree(kind, family)
    trace, block = rollout.trace, rollout.blocks[0]
    apart = replace(trace, completions=replace(trace.completions, name=None))
    alone = answer_block(apart, rollout.prompt, torch.ones(rollout.num_samples, dtype=torch.bool))
    assert count_calls(alone) == rollout.num_samples and alone.weight.sum() == trace.completions.length.sum()
    of_edge = torch.randn(int(block.edge.max()) + 1, generator=torch.Generator().manual_seed(0))
    weight = of_edge[block.edge] * block.weight
    naive = replace(rollout, trace=apart, blocks=(alone,))
    return rollout, weight, gradients(twin(family, sharing="none"), naive, weight, everything(naive))


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        if "k_proj.bias" not in name:  # a constant on all keys moves no softmax
            error = float((found[name] - tensor).norm() / tensor.norm())
            assert error <= 1e-5, f"{name} is off by {error:.1e}"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["cache", "packed", "none"])
@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "idefics3"])
def test_a_tree_has_the_log_probs_entropies_and_gradients_of_its_leaves_one_by_one(
    family: str, kind: str, way: str
) -> None:
    rollout, weight, expected = leaf_by_leaf(family, kind)
    assert_close(gradients(twin(family, sharing=way), rollout, weight, everything(rollout)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"attention": "eager"}, {"gradient_checkpointing": True}])
def test_other_attention_and_checkpointing_change_nothing(settings: dict[str, Any]) -> None:
    rollout, weight, expected = leaf_by_leaf("qwen2_5_vl", "forks")
    assert_close(gradients(twin(**settings), rollout, weight, everything(rollout)), expected)


def test_attention_that_takes_no_tree_mask_goes_by_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmrl.modalities.language.policy.takes_trees", lambda _: False)
    rollout, weight, expected = leaf_by_leaf("qwen2_5_vl", "segments")
    assert_close(gradients(twin(sharing="cache"), rollout, weight, everything(rollout)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANS)
def test_parts_of_a_tree_are_evaluated_as_the_whole(kind: str) -> None:
    policy, rollout = twin(), tree(kind)
    with torch.no_grad():
        whole = policy.forward(rollout, everything(rollout)).values
        parts = [policy.forward(rollout, part).values for part in everything(rollout).split(4)]
    torch.testing.assert_close(torch.stack(parts).sum(0), whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(policy.recorded(rollout, everything(rollout)).values, whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(policy.recompute(rollout, 5).trace.completions.log_prob, whole, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANS)
def test_an_update_reads_each_token_once_but_the_last_of_each_leaf(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, rollout = twin(), tree(kind)
    read: list[int] = []
    network: Any = policy.backbone.model.model.language_model
    hook = network.register_forward_pre_hook(
        lambda _, given, named: read.append(int(named["inputs_embeds"].shape[:2].numel())), with_kwargs=True
    )
    with torch.no_grad():
        policy.forward(rollout, everything(rollout))
    hook.remove()
    edge = rollout.blocks[0].edge
    each = [
        len(prompt) + len(edge[rollout.prompt == number][:, :-1].unique())
        for number, prompt in enumerate(rollout.trace.prompts)
    ]
    assert read == [3 * max(each)]  # padded to one length


@pytest.mark.slow  # loads and compares a model twice
def test_a_tree_of_a_model_with_a_state_goes_by_the_cache_as_a_packed_row_has_no_mask_for_it() -> None:
    """Linear attention (Qwen3.5): its state would run through one branch into the next."""
    policy, alone, rollout = twin("qwen3_5"), twin("qwen3_5", sharing="none"), tree("segments", "qwen3_5")
    view = everything(rollout)
    with torch.no_grad():
        found = policy.forward(rollout, view).values
        expected = alone.forward(rollout, view).values
    assert policy.sharing_mode == "cache"
    torch.testing.assert_close(found, expected, atol=3e-5, rtol=0)
    torch.testing.assert_close(found, policy.recorded(rollout, view).values, atol=3e-5, rtol=0)
