"""Rollouts of given answers, and what an evaluation computes and counts."""

from dataclasses import replace

import pytest
import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Outputs, Prompt
from mmrl.core.views import DecisionView, DenoisingView
from mmrl.plans.answers import AnswerPlan
from tests import vision_twins
from tests.vision_twins import PROMPTS, keys


@pytest.mark.slow
def test_given_texts_are_evaluated_as_if_drawn() -> None:
    policy = vision_twins.policy()
    texts = ("red", "the box </think>", "")
    given = policy.offline(PROMPTS, Outputs(texts=texts), keys(3))
    assert given.outputs.texts == texts and given.num_calls == 0
    view = DecisionView(torch.arange(3))
    with pytest.raises(ValueError, match="recompute"):
        policy.recorded(given, view)
    again = policy.recompute(given, 2)
    values = policy.forward(given, view).values.detach()
    torch.testing.assert_close(policy.recorded(again, view).values, values, atol=1e-5, rtol=0)
    expected = vision_twins.slow_logits(policy, given, 1)
    expected[:, list(policy.banned)] = -torch.inf
    tokens = given.trace.completions.tokens[1, : int(given.trace.completions.length[1])]
    assert tokens[-1] == policy.end_tokens[0]
    log_probs = expected.log_softmax(1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(values[1, : len(tokens)], log_probs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (Outputs(), "3 prompts need as many texts, got none"),
        (Outputs(texts=("one",)), "3 prompts need as many texts, got 1"),
        (Outputs(texts=("one", "two <|image_pad|>", "three")), "the answer 'two <.image_pad.>' spells a media token"),
        (Outputs(texts=("one", "two", "three<|im_end|>")), "the answer 'three<.im_end.>' spells an end token"),
    ],
)
def test_given_texts_that_do_not_fit_are_refused(outputs: Outputs, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vision_twins.policy().offline(PROMPTS, outputs, keys(3))


@pytest.mark.slow
def test_recomputed_log_probs_are_those_of_the_weights_in_place() -> None:
    policy = vision_twins.policy()
    rollout = vision_twins.rollout(policy, 8)
    view = DecisionView(torch.arange(9))
    before = policy.recorded(rollout, view).values
    for tensor in policy.weights.tensors("trained").values():
        tensor.mul_(1.01)
    after = policy.recorded(policy.recompute(rollout, 4), view).values
    torch.testing.assert_close(after, policy.forward(rollout, view).values.detach(), atol=1e-5, rtol=0)
    assert (after - before).abs().max() > 1e-3


def test_only_decisions_are_evaluated() -> None:
    policy = vision_twins.policy()
    rollout = vision_twins.rollout(policy, 2)
    view = DenoisingView(torch.tensor([0]), torch.tensor([0]), torch.tensor([0.5]), (1,), 1)
    with pytest.raises(ConfigError, match="a token policy evaluates decisions, not a DenoisingView"):
        policy.forward(rollout, view)


@pytest.mark.slow
def test_calls_are_counted_by_answer() -> None:
    policy = vision_twins.policy()
    rollout = vision_twins.rollout(policy, 4)
    assert (policy.num_calls, rollout.num_calls) == (9, 9)
    policy.forward(rollout, DecisionView(torch.tensor([0, 5])))
    assert policy.num_calls == 11


@pytest.mark.slow
def test_equal_prompts_of_two_groups_are_read_once_in_an_update() -> None:
    policy = vision_twins.policy()
    prompts = [PROMPTS[1], replace(PROMPTS[1], target={"answer": 1})]
    rollout = policy.rollout(prompts, [AnswerPlan(2, 4)] * 2, keys(2))
    seen: list[int] = []
    tower = policy.modules()["model"].get_submodule("model.visual")
    tower.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    policy.forward(rollout, DecisionView(torch.arange(4)))
    assert seen == [len(rollout.trace.prompts[0].media["pixel_values"])]


def test_a_prompt_of_text_alone_needs_no_images_anywhere_in_the_batch() -> None:
    policy = vision_twins.policy()
    rollout = policy.rollout([Prompt("red?"), Prompt("what is blue?")], [AnswerPlan(2, 4)] * 2, keys(2))
    assert rollout.outputs.canvases == (None,) * 4
    assert policy.forward(rollout, DecisionView(torch.arange(4))).values.shape == rollout.blocks[0].call.shape
