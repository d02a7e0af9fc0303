"""Answers are drawn from the distribution whose log-probs are recorded, one token at a time, each by its own number."""

from functools import cache
from typing import Any

import pytest
import torch

from mmrl.core.contracts import Placement
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.views import DecisionView
from mmrl.modalities.encoding.inputs import runs
from mmrl.modalities.tiny.vision_language import BUILDERS
from mmrl.modalities.tokens.completions import Completions, StoppingCriteria, uniforms
from mmrl.modalities.tokens.generation import AnswerGenerator
from mmrl.modalities.tokens.sampling import SamplingDistribution, Support, sample_tokens, sampling_log_probs
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.plans.answers import AnswerPlan
from tests import vision_twins
from tests.parameters import slow_but
from tests.vision_twins import GROUPS, PROMPTS, keys

DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.6},
    "cut": {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
}


@cache
def policy_and_rollout(family: str = "qwen2_5_vl", distribution: str = "plain") -> tuple[VisionLanguage, Rollout]:
    policy = vision_twins.policy(family)
    return policy, vision_twins.rollout(policy, 8, **DISTRIBUTIONS[distribution])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("family", slow_but(BUILDERS, "qwen2_5_vl"))
def test_log_probs_are_those_of_a_slow_loop_without_cache(family: str, distribution: str) -> None:
    policy, rollout = policy_and_rollout(family, distribution)
    settings = SamplingDistribution(**{"temperature": 1.0, **DISTRIBUTIONS[distribution]}, banned=policy.banned)
    decisions = policy.forward(rollout, DecisionView(torch.arange(9)))
    assert decisions.entropy is not None
    for sample in (0, 3, 5):  # one of each prompt: no image, one, three
        length = int(rollout.trace.completions.length[sample])
        log_probs = sampling_log_probs(vision_twins.slow_logits(policy, rollout, sample), settings)
        tokens = rollout.trace.completions.tokens[sample, :length]
        expected = log_probs.gather(1, tokens[:, None])[:, 0]
        entropy = -(log_probs.exp() * log_probs.clamp(min=-1e9)).sum(1)
        torch.testing.assert_close(rollout.trace.completions.log_prob[sample, :length], expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(decisions.values[sample, :length].detach(), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(decisions.entropy[sample, :length].detach(), entropy, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_token_is_drawn_by_the_number_of_its_group_member_and_place() -> None:
    policy, rollout = policy_and_rollout(distribution="cut")
    settings = SamplingDistribution(**{"temperature": 1.0, **DISTRIBUTIONS["cut"]}, banned=policy.banned)
    for sample, (group, member) in {0: (0, 0), 4: (1, 1), 8: (2, 3)}.items():
        length = int(rollout.trace.completions.length[sample])
        generator = torch.Generator().manual_seed(GroupKey(1, 0, group).seed_for("tokens", member))
        numbers = torch.rand(length, generator=generator, dtype=torch.float64)
        tokens = sample_tokens(sampling_log_probs(vision_twins.slow_logits(policy, rollout, sample), settings), numbers)
        assert torch.equal(tokens, rollout.trace.completions.tokens[sample, :length])


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["plain", "cut"])
@pytest.mark.parametrize(
    ("read_every", "stop"),
    [
        (1, ()),
        (3, ("e", "t")),
        (16, ("e", "t")),
    ],
)
def test_answers_are_those_of_a_slow_loop_however_rarely_the_host_reads(
    read_every: int, stop: tuple[str, ...], distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow loop: one answer at a time, its whole text by transformers for each token, and its end looked for."""
    monkeypatch.setattr(AnswerGenerator, "_read_every", read_every)
    policy = vision_twins.policy()
    settings = {"temperature": 1.0, **DISTRIBUTIONS[distribution]}
    rollout = vision_twins.rollout(policy, 8, stop=stop, **settings)
    cut = SamplingDistribution(**settings, banned=policy.banned)
    completions = rollout.trace.completions
    lengths = completions.length.tolist()
    assert read_every == 1 or len(set(lengths)) > 1  # some answers end between two reads
    place = 0
    for sample, (group, member) in enumerate(
        [(g, m) for g, count in enumerate(vision_twins.GROUPS) for m in range(count)]
    ):
        length = lengths[sample]
        generator = torch.Generator().manual_seed(GroupKey(1, 0, group).seed_for("tokens", member))
        numbers = torch.rand(length, generator=generator, dtype=torch.float64)
        log_probs = sampling_log_probs(vision_twins.slow_logits(policy, rollout, sample), cut)
        tokens = sample_tokens(log_probs, numbers)
        assert torch.equal(tokens, completions.tokens[sample, :length])
        assert not completions.tokens[sample, length:].any() and not completions.log_prob[sample, length:].any()
        own = log_probs.gather(1, tokens[:, None])[:, 0]
        torch.testing.assert_close(completions.log_prob[sample, :length], own, atol=1e-5, rtol=0)
        ends = [
            int(token) in policy.end_tokens or any(text in policy.decode(tokens[: n + 1].tolist()) for text in stop)
            for n, token in enumerate(tokens)
        ]
        assert ends == [False] * (length - 1) + [bool(completions.is_finished[sample])]
        assert completions.is_finished[sample] or length == 8
        if completions.support is not None:
            kept = completions.support.select(torch.arange(place, place + length))
            assert kept.sizes.tolist() == (log_probs > -torch.inf).sum(1).tolist()
            assert kept.ids.tolist() == (log_probs > -torch.inf).nonzero()[:, 1].tolist()
        place += length


def test_a_longer_budget_begins_with_the_same_numbers() -> None:
    seeds = [GroupKey(1, 2, 3).seed_for("tokens", number) for number in range(2)]
    assert torch.equal(uniforms(seeds, 5), uniforms(seeds, 500)[:, :5])
    assert not torch.equal(*uniforms(seeds, 5))


@pytest.mark.slow
@pytest.mark.parametrize("answer_batch", [1, 3, 256])
def test_a_sample_does_not_depend_on_its_neighbours(answer_batch: int) -> None:
    policy, together = policy_and_rollout()
    policy = vision_twins.policy(answer_batch=answer_batch)
    alone = policy.rollout(PROMPTS[2:], [AnswerPlan(2, 8)], keys(1, first=2))
    for member, sample in enumerate((5, 6)):
        length = int(together.trace.completions.length[sample])
        assert alone.outputs.texts[member] == together.outputs.texts[sample]  # type: ignore[index]
        found, expected = (r.trace.completions.log_prob for r in (alone, together))
        torch.testing.assert_close(found[member, :length], expected[sample, :length], atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_micro_batches_put_together_give_the_whole(micro_batch: int) -> None:
    policy, rollout = policy_and_rollout()
    view = DecisionView(torch.arange(9))
    with torch.no_grad():
        whole = policy.forward(rollout, view).values
        parts = [policy.forward(rollout, part).values for part in view.split(micro_batch)]
    torch.testing.assert_close(torch.stack(parts).sum(0), whole, atol=1e-5, rtol=0)
    assert all(((part != 0).any(1).sum() <= micro_batch) for part in parts)


@pytest.mark.slow
def test_joined_rollouts_are_evaluated_like_one() -> None:
    policy, together = policy_and_rollout()
    parts = [policy.rollout([p], [AnswerPlan(n, 8)], [k]) for p, n, k in zip(PROMPTS, GROUPS, keys(3), strict=True)]
    joined = Rollout.join(parts)
    assert joined.outputs.texts == together.outputs.texts
    view = DecisionView(torch.arange(9))
    with torch.no_grad():
        found, expected = policy.forward(joined, view), policy.forward(together, view)
    torch.testing.assert_close(found.values, expected.values, atol=1e-5, rtol=0)
    torch.testing.assert_close(policy.recorded(joined, view).values, found.values, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_truncated_supports_are_joined_and_selected_with_their_answers() -> None:
    policy, together = policy_and_rollout(distribution="cut")
    plans = [AnswerPlan(n, 8, **DISTRIBUTIONS["cut"]) for n in GROUPS]
    parts = [policy.rollout([p], [plan], [k]) for p, plan, k in zip(PROMPTS, plans, keys(3), strict=True)]
    joined = Rollout.join(parts)
    with torch.no_grad():
        for view in DecisionView(torch.arange(9)).split(2):
            found, expected = policy.forward(joined, view), policy.recorded(joined, view)
            torch.testing.assert_close(found.values, expected.values, atol=1e-5, rtol=0)
    assert joined.trace.completions.support.ids.tolist() == together.trace.completions.support.ids.tolist()


def test_selected_answers_are_as_wide_as_the_longest_of_them() -> None:
    tokens = torch.tensor([[1, 2, 0, 0], [3, 4, 5, 6], [7, 0, 0, 0]])
    support = Support(torch.arange(7), torch.ones(7, dtype=torch.int64))
    policy_and_rollout = Completions(
        tokens, torch.tensor([2, 4, 1]), tokens / 10, torch.tensor([True, False, True]), support
    )
    found = policy_and_rollout.select(torch.tensor([2, 0]))
    assert found.tokens.tolist() == [[7, 0], [1, 2]] and torch.equal(found.log_prob, found.tokens / 10)
    assert found.length.tolist() == [1, 2] and found.is_finished.tolist() == [True, True]
    assert found.support is not None and found.support.ids.tolist() == [6, 0, 1]


@pytest.mark.slow
def test_sharded_processes_encode_the_prompt_that_fills_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = vision_twins.policy()
    assert policy.lockstep is None
    policy.prepare(Placement(torch.device("cpu"), torch.float32, maximum=lambda count: count))
    first = policy.lockstep
    monkeypatch.setattr(policy, "encode", None)
    assert first is not None and policy.lockstep is first


@pytest.mark.slow
def test_greedy_answers_take_the_likeliest_token_and_decide_nothing() -> None:
    policy, _ = policy_and_rollout()
    rollout = vision_twins.rollout(policy, 5, temperature=0.0)
    assert rollout.blocks[0].call.shape == (9, 0)
    for sample in (0, 3, 5):
        logits = vision_twins.slow_logits(policy, rollout, sample)
        logits[:, list(policy.banned)] = -torch.inf
        length = int(rollout.trace.completions.length[sample])
        assert torch.equal(logits.argmax(1), rollout.trace.completions.tokens[sample, :length])


@pytest.mark.slow
def test_calls_keep_groups_together_and_sort_by_length() -> None:
    policy, _ = policy_and_rollout()
    rollout = vision_twins.rollout(policy, 40)
    call, length = rollout.blocks[0].call[:, 0], rollout.trace.completions.length
    order = call.argsort()
    assert sorted(call.tolist()) == list(range(9))
    groups = rollout.prompt[order].tolist()
    assert [g for n, g in enumerate(groups) if n == 0 or groups[n - 1] != g] == [0, 1, 2]
    for group in range(3):
        inside = length[order][rollout.prompt[order] == group]
        assert inside.tolist() == sorted(inside.tolist())
    is_there = torch.arange(int(length.max())) < length[:, None]
    assert torch.equal(rollout.blocks[0].weight, is_there.float())
    assert rollout.blocks[0].edge[is_there].tolist() == list(range(int(length.sum())))


@pytest.mark.slow
def test_an_answer_ends_with_an_end_token_that_its_text_does_not_show() -> None:
    policy, _ = policy_and_rollout()
    rollout = vision_twins.rollout(policy, 60)
    tokens, length = rollout.trace.completions.tokens, rollout.trace.completions.length
    last = tokens.gather(1, length[:, None] - 1)[:, 0]
    ends = torch.isin(last, torch.tensor(policy.end_tokens))
    finished = rollout.outputs.is_finished
    assert finished is not None and rollout.outputs.num_tokens is not None and rollout.outputs.texts is not None
    assert finished.any() and not finished.all()
    assert torch.equal(ends, finished)
    assert torch.equal(rollout.outputs.num_tokens, length)
    assert (length[~finished] == 60).all()
    assert not torch.isin(tokens, torch.tensor(policy.banned)).any()
    assert all("<|im_end|>" not in text and "<|endoftext|>" not in text for text in rollout.outputs.texts)
    with torch.no_grad():  # those that drew on after others had left still stand on their own past
        again = policy.forward(rollout, DecisionView(torch.arange(9))).values
    torch.testing.assert_close(rollout.trace.completions.log_prob, again, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_masked_answers_are_no_decision_but_still_samples() -> None:
    policy, _ = policy_and_rollout()
    rollout = vision_twins.rollout(policy, 60, masks_truncated=True)
    finished = rollout.outputs.is_finished
    assert finished is not None
    assert torch.equal(rollout.blocks[0].weight.any(1), finished)
    assert (rollout.blocks[0].call[~finished] == -1).all()
    before = policy.num_calls
    view = DecisionView(torch.unique(rollout.blocks[0].call[finished, 0]))
    decisions = policy.forward(rollout, view)
    assert policy.num_calls - before == int(finished.sum())
    assert torch.equal((decisions.values != 0).any(1), finished)


@pytest.mark.slow
def test_an_answer_stops_behind_a_stop_text_even_across_tokens() -> None:
    policy, _ = policy_and_rollout()
    free = vision_twins.rollout(policy, 8)
    assert free.outputs.texts is not None
    text = free.outputs.texts[5]
    stop = text[2:5]  # within the first tokens
    rollout = vision_twins.rollout(policy, 8, stop=("never there", stop))
    assert rollout.outputs.texts is not None and rollout.outputs.is_finished is not None
    assert text.startswith(rollout.outputs.texts[5]) and stop in rollout.outputs.texts[5]
    assert rollout.outputs.is_finished[5] and int(rollout.trace.completions.length[5]) < int(
        free.trace.completions.length[5]
    )


def test_an_ending_looks_only_as_far_back_as_the_stop_text_is_long() -> None:
    stopping = StoppingCriteria((9,), ("ab",), lambda tokens: "".join(chr(96 + token) for token in tokens), 10)
    tokens = torch.tensor([[1, 2, 3], [3, 1, 2], [3, 3, 9], [3, 3, 2]])
    assert stopping.ends(tokens, torch.full((4,), 3)).tolist() == [False, True, True, False]


def test_prompts_fill_batches_and_large_groups_stand_alone() -> None:
    assert runs([2, 2, 3, 9, 1, 1], 4) == [range(0, 2), range(2, 3), range(3, 4), range(4, 6)]


@pytest.mark.slow
def test_those_who_have_ended_change_no_draw_of_those_who_go_on() -> None:
    stop = ("e", "t", "\n", "0", "r")
    together = vision_twins.rollout(vision_twins.policy(), 12, stop=stop)
    alone = vision_twins.rollout(vision_twins.policy(answer_batch=1), 12, stop=stop)
    length = together.trace.completions.length
    in_group = [set(length[together.prompt == number].tolist()) for number in range(3)]
    assert max(map(len, in_group)) > 1  # some end before others
    assert torch.equal(alone.trace.completions.length, length)
    assert torch.equal(alone.trace.completions.tokens, together.trace.completions.tokens)
