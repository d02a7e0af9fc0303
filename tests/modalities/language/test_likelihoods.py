"""How likely a policy finds answers: against transformers' own forward, one token at a time; and what it costs."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmrl.core.data import Outputs, Rollout
from mmrl.core.likelihoods import Likelihoods, tokens_between
from mmrl.core.views import DecisionView
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.training.thought import ThoughtReader
from tests import vision_twins


@pytest.fixture
def policy() -> VisionLanguage:
    return vision_twins.policy()


@pytest.fixture
def rollout(policy: VisionLanguage) -> Rollout:
    return vision_twins.rollout(policy, 8, temperature=0.7)


def slow(policy: VisionLanguage, rollout: Rollout, temperature: float) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Gives each answer's number, tokens [T], and log-probs [T, V] of the tokens that may be sampled."""
    may = [token for token in range(len(policy.head.weight)) if token not in policy.banned]
    for row in range(rollout.num_samples):
        tokens = rollout.trace.completions.tokens[row, : int(rollout.trace.completions.length[row])]
        logits = vision_twins.slow_logits(policy, rollout, row)[:, may] / temperature
        places = torch.tensor([may.index(token) for token in tokens.tolist()])
        yield row, places, logits.log_softmax(1)


@pytest.mark.slow
def test_likelihoods_are_those_of_a_plain_forward_pass(policy: VisionLanguage, rollout: Rollout) -> None:
    found = policy.likelihoods(rollout, 2, has_certainty=True)
    assert found.entropy is not None and found.self_certainty is not None
    for row, tokens, log_p in slow(policy, rollout, 0.7):
        count = len(tokens)
        expected = log_p.gather(1, tokens[:, None])[:, 0]
        torch.testing.assert_close(found.log_prob[row, :count], expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.entropy[row, :count], -(log_p.exp() * log_p).sum(1), atol=1e-5, rtol=1e-5)
        uniform = torch.full_like(log_p, 1 / log_p.shape[1])
        certainty = (uniform * (uniform.log() - log_p)).sum(1)  # KL(uniform || p)
        torch.testing.assert_close(found.self_certainty[row, :count], certainty, atol=1e-5, rtol=1e-5)
        for values in (found.log_prob, found.entropy, found.self_certainty):
            assert not values[row, count:].any(), "nothing stands behind the last token"


def test_what_the_rollout_recorded_is_the_same_and_costs_no_call(policy: VisionLanguage, rollout: Rollout) -> None:
    before, found = policy.num_calls, policy.likelihoods(rollout, 4)
    assert policy.num_calls == before + rollout.num_samples, "one call for each answer"
    thought = ThoughtReader(4)(policy, rollout, {"likelihoods.sampled", "texts"})
    assert policy.num_calls == before + rollout.num_samples and not thought.right_answer
    recorded = thought.likelihoods["sampled"]
    torch.testing.assert_close(recorded.log_prob, found.log_prob, atol=1e-5, rtol=0)
    assert recorded.entropy is not None and found.entropy is not None
    torch.testing.assert_close(recorded.entropy, found.entropy, atol=1e-5, rtol=0)


def test_answers_that_are_no_decisions_are_read_too(policy: VisionLanguage, rollout: Rollout) -> None:
    cut = replace(rollout, blocks=(replace(rollout.blocks[0], edge=torch.full_like(rollout.blocks[0].edge, -1)),))
    torch.testing.assert_close(policy.likelihoods(cut, 4).log_prob, policy.likelihoods(rollout, 4).log_prob)


def test_each_set_of_weights_reads_once_for_all_rewards_and_leaves_its_place(
    policy: VisionLanguage, rollout: Rollout
) -> None:
    policy.weights.keep("reference")
    for tensor in policy.weights.tensors("trained").values():
        tensor.mul_(1.02)
    before = policy.num_calls
    thought = ThoughtReader(3)(policy, rollout, ["likelihoods.reference", "likelihoods.trained"])
    assert policy.num_calls == before + 2 * rollout.num_samples
    reference, trained = (thought.likelihoods[name] for name in ("reference", "trained"))
    torch.testing.assert_close(trained.log_prob, now(policy, rollout), atol=1e-5, rtol=0)
    assert (trained.log_prob - reference.log_prob).abs().max() > 1e-3
    recorded = policy.recorded_likelihoods(rollout)  # the reference sampled it
    torch.testing.assert_close(reference.log_prob, recorded.log_prob, atol=1e-5, rtol=0)


def now(policy: VisionLanguage, rollout: Rollout) -> Tensor:
    with torch.no_grad():
        return policy.forward(rollout, DecisionView(torch.arange(9))).values


def test_the_right_answer_stands_behind_each_samples_own_thought(policy: VisionLanguage, rollout: Rollout) -> None:
    ends = [("it is ", "red"), None, ("", "a box"), *[None] * 5, ("it is ", "<|im_end|>")]
    means = policy.mean_log_probs(rollout, ends, 1)
    assert means.isnan().tolist() == [end is None or "im_end" in end[1] for end in ends]
    for row, beginning, end in [(0, "it is ", "red"), (2, "", "a box")]:
        prompt = rollout.prompts[int(rollout.prompt[row])]
        given = policy.offline([prompt], Outputs(texts=(beginning + end,)), vision_twins.keys(1))
        ((_, tokens, log_p),) = slow(policy, given, 1.0)
        values = log_p.gather(1, tokens[:, None])[:, 0]
        texts = [policy.decode([token]) for token in given.trace.completions.tokens[0].tolist()]
        first = next(n for n in range(len(texts)) if len("".join(texts[: n + 1])) > len(beginning))
        assert "".join(texts[first:-1]).endswith(end)
        assert means[row].item() == pytest.approx(values[first:-1].mean().item(), abs=1e-5)


def test_likelihoods_of_some_answers_are_cut_out() -> None:
    whole = Likelihoods(torch.arange(6.0).view(3, 2), None, torch.arange(6.0, 12.0).view(3, 2))
    some = whole.select(torch.tensor([2, 0]))
    assert some.log_prob.tolist() == [[4, 5], [0, 1]] and some.entropy is None
    assert some.self_certainty is not None and some.self_certainty.tolist() == [[10, 11], [6, 7]]


@pytest.mark.slow
def test_in_float64_likelihoods_equal_a_forward_pass_of_their_own_to_a_millionth() -> None:
    policy = vision_twins.policy()
    for module in policy.modules().values():
        module.double()
    assert policy.head.weight.dtype == torch.float64
    rollout = vision_twins.rollout(policy, 8, temperature=0.7)
    found, recorded = policy.likelihoods(rollout, 2, has_certainty=True), policy.recorded_likelihoods(rollout)
    assert found.entropy is not None and found.self_certainty is not None
    ends = [("it is ", "red"), *[None] * (rollout.num_samples - 1)]
    mean = policy.mean_log_probs(rollout, ends, 1)[0]
    given = policy.offline([rollout.prompts[0]], Outputs(texts=("it is red",)), vision_twins.keys(1))
    ((_, tokens, log_p),) = slow(policy, given, 1.0)
    pieces, own = given.outputs.pieces, log_p.gather(1, tokens[:, None])[:, 0]
    assert pieces is not None
    places = tokens_between(pieces[0], len("it is "), len("it is red"))
    assert mean.item() == pytest.approx(own[places].mean().item(), abs=1e-6)
    for row, tokens, log_p in slow(policy, rollout, 0.7):
        count, expected = len(tokens), log_p.gather(1, tokens[:, None])[:, 0]
        assert expected.dtype == torch.float64
        certainty = -log_p.mean(1) - math.log(log_p.shape[1])
        entropy = -(log_p.exp() * log_p).sum(1)
        for values, right in ((found.log_prob, expected), (found.entropy, entropy), (found.self_certainty, certainty)):
            assert (values[row, :count].double() - right).abs().max() <= 1e-6
        assert (recorded.log_prob[row, :count].double() - expected).abs().max() <= 1e-6


def test_what_does_not_fit_is_read_in_halves_which_the_reader_keeps(policy: VisionLanguage, rollout: Rollout) -> None:
    whole, sizes = policy.likelihoods, list[int]()

    def tight(rollout: Rollout, size: int, *, has_certainty: bool = False) -> Likelihoods:
        sizes.append(size)
        found = whole(rollout, size)
        if size > 2:
            raise torch.OutOfMemoryError("too small")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "likelihoods", tight)
        before, reader = policy.num_calls, ThoughtReader(64)
        thought = reader(policy, rollout, {"likelihoods.trained"})
        assert sizes == [64, 4, 2] and policy.num_calls == before + rollout.num_samples, (
            "9 answers; what failed is free"
        )
        reader(policy, rollout, {"likelihoods.trained"})
    assert sizes[3:] == [2] and reader.size == 2
    torch.testing.assert_close(thought.likelihoods["trained"].log_prob, whole(rollout, 9).log_prob)


def test_self_certainty_is_read_where_a_reward_needs_it(policy: VisionLanguage, rollout: Rollout) -> None:
    plain = ThoughtReader(9)(policy, rollout, {"likelihoods.trained"}).likelihoods["trained"]
    certain = ThoughtReader(9)(policy, rollout, {"self_certainty.trained"}).likelihoods["trained"]
    assert plain.self_certainty is None and certain.self_certainty is not None
    assert torch.equal(plain.log_prob, certain.log_prob)
