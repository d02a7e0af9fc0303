"""A prompt computed once for its answers gives what the plain batch gives, gradients included."""

import re
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import Cache, LinearAttentionLayer

from mmrl.core.data import Rollout
from mmrl.core.views import DecisionView
from mmrl.modalities.language.policy import _HIDDEN_BY_MODE
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.tiny.vision_language import BUILDERS
from mmrl.modalities.tokens.backbone import ONE_IMAGE, Sight, expand
from mmrl.modalities.tokens.completions import Completions
from mmrl.modalities.tokens.prefix_packing import PADDING, PROMPT, PackedRows
from mmrl.modalities.vision_language import VisionLanguage
from tests import vision_twins
from tests.parameters import slow_but

FAMILIES = tuple(BUILDERS)
TOLERANCE = 1e-5  # norm(difference) / norm, per tensor, in float32


def evaluated(policy: VisionLanguage, drawn: Rollout, calls: Tensor) -> dict[str, Tensor]:
    """Log-probs, entropies, and every parameter's gradient of a weighted sum of both."""
    policy.modules()["model"].zero_grad()
    decisions = policy.forward(drawn, DecisionView(calls))
    assert decisions.entropy is not None
    weight = torch.randn(decisions.values.shape, generator=torch.Generator().manual_seed(0))
    (decisions.values * weight + decisions.entropy * weight.flip(0)).sum().backward()
    gradients = {n: p.grad.clone() for n, p in policy.weights.parameters.items() if p.grad is not None}
    return {"log_prob": decisions.values.detach(), "entropy": decisions.entropy.detach()} | gradients


def ragged(drawn: Rollout) -> Rollout:
    """The rollout with its answers cut to 1, 2, 3 ... tokens, so that no two of a group are equally long."""
    answers: Completions = drawn.trace.completions
    length = torch.minimum(answers.length, torch.tensor([1, 10, 4, 7, 2, 9, 1, 5, 10]))
    edge = torch.where(torch.arange(answers.tokens.shape[1]) < length[:, None], drawn.blocks[0].edge, -1)
    block = replace(drawn.blocks[0], edge=edge, call=torch.where(edge < 0, -1, drawn.blocks[0].call))
    trace = replace(drawn.trace, completions=replace(answers, length=length))
    return replace(drawn, trace=trace, blocks=(block,))


@cache
def plain(family: str, kind: str) -> tuple[VisionLanguage, Rollout, dict[str, Tensor]]:
    """A policy without sharing, a ragged rollout of it, and what it makes of the rollout."""
    lora = {"full": None, "lora": Lora(rank=2, alpha=4), "language": Lora(rank=2, alpha=4)}[kind]
    policy = vision_twins.policy(
        family, lora=lora, vision="frozen" if kind == "language" else "trained", sharing="none"
    )
    generator = torch.Generator().manual_seed(3)
    for name, tensor in policy.weights.tensors("trained").items():
        if "lora_B" in name:  # zero at the start, where A has no gradient
            tensor.normal_(0.0, 0.3, generator=generator)
    drawn = ragged(vision_twins.rollout(policy))
    return policy, drawn, evaluated(policy, drawn, torch.arange(9))


def shared(family: str, kind: str, **settings: Any) -> dict[str, Tensor]:
    """The same under other settings of the same policy."""
    reference, drawn, _ = plain(family, kind)
    policy = vision_twins.policy(
        family, lora=reference.lora, vision=reference.vision, **({"sharing": "cache"} | settings)
    )
    policy.weights.load("trained", reference.weights.tensors("trained"))
    return evaluated(policy, drawn, torch.arange(9))


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(found) == set(expected)
    errors = {
        name: float((found[name] - tensor).norm() / tensor.norm())
        for name, tensor in expected.items()
        # a constant on all keys moves no softmax: without rotation this gradient is 0 and its value rounding
        if not re.search(r"vision.*k_proj\.bias", name)
    }
    worst = max(errors, key=lambda name: errors[name])
    assert errors[worst] <= TOLERANCE, f"{worst} is off by {errors[worst]:.1e}"


@pytest.mark.parametrize("kind", slow_but(["full", "lora", "language"], "full"))
@pytest.mark.parametrize("way", ["cache", "packed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_sharing_gives_the_log_probs_entropies_and_gradients_of_the_plain_batch(
    family: str, way: str, kind: str
) -> None:
    assert_equal(shared(family, kind, sharing=way), plain(family, kind)[2])


@pytest.mark.parametrize("kind", slow_but(["full", "lora", "language"], "full"))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_trained_tensor_has_a_gradient_and_no_other(family: str, kind: str) -> None:
    policy, _, result = plain(family, kind)
    reached = {name for name, tensor in result.items() if float(tensor.norm()) > 0}
    assert reached - {"log_prob", "entropy"} == set(policy.weights.parameters)
    others = [p for p in policy.modules()["model"].parameters() if not p.requires_grad]
    assert all(p.grad is None for p in others)


@pytest.mark.parametrize("way", slow_but(["cache", "packed", "none"], "packed"))
@pytest.mark.parametrize("family", FAMILIES)
def test_checkpointing_changes_nothing(family: str, way: str) -> None:
    found = shared(family, "full", sharing=way, gradient_checkpointing=True)
    assert_equal(found, plain(family, "full")[2])


@pytest.mark.parametrize("way", slow_but(["cache", "packed", "none"], "cache"))
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gemma3"])  # its windows count padding
def test_the_side_of_the_padding_changes_nothing(family: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: Any = _HIDDEN_BY_MODE[way]
    monkeypatch.setitem(_HIDDEN_BY_MODE, way, partial(hidden, side="right"))
    assert_equal(shared(family, "full", sharing=way), plain(family, "full")[2])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_eager_attention_takes_the_tree_mask_too(family: str) -> None:
    # Against the plain batch of eager attention: it rounds otherwise than sdpa does, Gemma 3's gradients by 2e-5.
    expected = shared(family, "full", sharing="none", attention="eager")
    assert_equal(shared(family, "full", sharing="packed", attention="eager"), expected)
    torch.testing.assert_close(expected["log_prob"], plain(family, "full")[2]["log_prob"], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_packed_layers_are_computed_again_under_checkpointing() -> None:
    policy = vision_twins.policy(sharing="packed", gradient_checkpointing=True)
    layer = policy.modules()["model"].get_submodule("model.language_model.layers.0.mlp")
    calls = []
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    evaluated(policy, plain("qwen2_5_vl", "full")[1], torch.arange(9))
    assert len(calls) == 2


@pytest.mark.parametrize("way", ["cache", "packed"])
def test_the_vision_tower_sees_each_image_once(way: str) -> None:
    policy = vision_twins.policy(sharing=way)
    seen: list[int] = []
    policy.modules()["model"].get_submodule("model.visual").register_forward_pre_hook(
        lambda _, given: seen.append(len(given[0]))
    )
    drawn = plain("qwen2_5_vl", "full")[1]
    policy.forward(drawn, DecisionView(torch.arange(9)))
    patches = sum(len(prompt.media["pixel_values"]) for prompt in drawn.trace.prompts if prompt.media)
    assert seen == [patches]


def test_a_packed_token_sees_the_prompt_and_its_own_answer() -> None:
    member = torch.tensor([[PROMPT, PROMPT, 0, 0, 1, PADDING]])
    step = torch.tensor([[0, 1, 2, 3, 2, 0]])
    rows = PackedRows(member, member[None], torch.tensor([[1, 1, 0, 0, 0, 0]]), member, step)
    causal = torch.tensor(
        [
            [1, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [1, 1, 1, 1, 0, 0],
            [1, 1, 0, 0, 1, 0],
            [1, 0, 0, 0, 0, 1],  # padding: anything but nothing
        ]
    ).bool()
    assert torch.equal(rows.may_see()[0], causal)
    narrow = causal.clone()
    narrow[3, 0] = narrow[2, 0] = narrow[4, 0] = narrow[3, 1] = False
    assert torch.equal(rows.may_see(window=2)[0], narrow)
    ahead = causal.clone()
    ahead[0, 1] = True
    assert torch.equal(rows.may_see(sight=Sight(ahead=ONE_IMAGE))[0], ahead)
    both = torch.eye(6).bool()  # a window of one token cuts everything but the image's own tokens
    both[0, 1] = both[1, 0] = both[5, 0] = True
    assert torch.equal(rows.may_see(window=1, sight=Sight(ONE_IMAGE, ONE_IMAGE))[0], both)
    both[1, 0] = False  # what is behind, beyond the window
    assert torch.equal(rows.may_see(window=1, sight=Sight(ahead=ONE_IMAGE))[0], both)


def test_an_expanded_cache_leaves_the_given_one_as_it_was_also_the_states_of_linear_attention() -> None:
    layer = LinearAttentionLayer()
    layer.update_recurrent_state(torch.arange(2.0)[:, None])
    given = Cache(layers=[layer])
    part = expand(given, torch.tensor([1, 1, 0])).layers[0]
    assert part.recurrent_states[0][:, 0].tolist() == [1, 1, 0]
    part.update_recurrent_state(torch.full((3, 1), 7.0))
    kept = layer.recurrent_states[0]
    assert kept is not None and kept[:, 0].tolist() == [0, 1]
