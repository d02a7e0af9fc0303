"""One optimizer step: the gradient does not depend on how the work is cut, whatever the scope of the loss."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import Loss
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import Normalisation
from mmrl.core.views import DecisionView
from mmrl.losses.disco import Disco
from mmrl.losses.gmpo import Gmpo
from mmrl.losses.grpo import Grpo
from mmrl.losses.gspo import Gspo
from mmrl.losses.reinforce import Reinforce
from mmrl.losses.topr import Topr
from mmrl.training.processes import Processes
from mmrl.training.update import OldSource, Updater, views_of
from tests.toys import AnswerRatio, GroupPreference, SequenceRatio, ToyTokens, loss_batch, toy_rollout

LOSSES: list[Callable[[Any], Loss]] = [
    lambda by: Gspo(clip_low=0.2, clip_high=0.2, normalise=by),
    lambda by: Gmpo(normalise=by),
    lambda by: Topr(normalise=by),
    lambda by: Grpo(clip_low=0.2, clip_high=0.2, kl_coef=0.3, kl="k3", normalise=by),
    lambda by: Reinforce(normalise=by),
    lambda by: Disco(kl_bound=0.0, hinge_weight=3.0, positive_above=0.0, normalise=by),
    lambda by: SequenceRatio(normalise=by),
    lambda by: AnswerRatio(normalise=by),
    lambda by: GroupPreference(),
]


def gradient(
    policy: ToyTokens,
    rollout: Rollout,
    loss: Loss,
    micro_batch: int,
    *,
    old: OldSource = "recorded",
    rows: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    rows = torch.arange(rollout.num_samples) if rows is None else rows
    weight = torch.zeros(rollout.num_samples, 1)
    weight[rows] = 1.0
    views = loss.views(rollout, rows, GroupKey(0, 0, 0))
    policy.network.zero_grad()
    metrics = Updater(policy, loss, Processes(), micro_batch).accumulate(
        rollout, views, loss_batch(rollout, weight=weight), old
    )
    assert metrics is not None
    means = {name: float(total / metrics.weight[name]) for name, total in metrics.totals.items()}
    return torch.cat([p.grad.flatten().clone() for p in policy.network.parameters() if p.grad is not None]), means


def moved(policy: ToyTokens) -> None:
    """Puts the policy off the weights that drew the rollout."""
    policy.weights.keep("reference")
    with torch.no_grad():
        policy.network.weight.add_(
            torch.linspace(-0.4, 0.5, policy.network.weight.numel()).view_as(policy.network.weight)
        )


@pytest.mark.parametrize("by", ["decision", "sample", "group", "constant"])
@pytest.mark.parametrize("make", LOSSES)
@pytest.mark.parametrize("micro_batch", [1, 3])
def test_micro_batches_give_the_gradient_and_metrics_of_the_whole(
    make: Callable[[Any], Loss], by: Normalisation, micro_batch: int
) -> None:
    policy, rollout = toy_rollout()
    moved(policy)
    whole, seen = gradient(policy, rollout, make(by), 100)
    parts, seen_in_parts = gradient(policy, rollout, make(by), micro_batch)
    assert whole.abs().max() > 1e-3
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-5)
    assert seen == pytest.approx(seen_in_parts, abs=1e-5)


@pytest.mark.parametrize("micro_batch", [1, 3, 100])
@pytest.mark.parametrize("loss", [Reinforce(), SequenceRatio()])
def test_the_mean_entropy_of_the_decisions_is_logged(loss: Loss, micro_batch: int) -> None:
    policy, rollout = toy_rollout()
    plain = policy.forward
    policy.forward = lambda *given: replace(plain(*given), entropy=plain(*given).values.square())  # type: ignore[method-assign]
    rows = torch.tensor([0, 2, 3, 5])
    is_there = rollout.blocks[0].call[rows] >= 0
    expected = rollout.trace.log_prob[rows][is_there].square().mean()  # nothing has moved since
    assert gradient(policy, rollout, loss, micro_batch, rows=rows)[1]["policy/entropy"] == pytest.approx(
        float(expected)
    )


@pytest.mark.parametrize("micro_batch", [1, 5, 100])
def test_a_measure_of_whole_answers_has_the_gradient_of_one_of_tokens(micro_batch: int) -> None:
    policy, rollout = toy_rollout()
    moved(policy)
    tokens, _ = gradient(policy, rollout, SequenceRatio(), micro_batch)
    answers, _ = gradient(policy, rollout, AnswerRatio(), micro_batch)
    torch.testing.assert_close(answers, tokens, atol=1e-6, rtol=1e-5)


def test_the_gradient_of_a_group_scope_loss_is_that_of_its_formula() -> None:
    policy, rollout = toy_rollout()
    tokens, advantages = rollout.trace.tokens, loss_batch(rollout).advantages[:, 0]
    total = torch.zeros(())
    for group in range(3):
        members = [n for n in range(len(tokens)) if int(rollout.group[n]) == group]
        inside = torch.zeros(())
        for n in members:
            for k, token in enumerate(tokens[n].tolist()):
                if token >= 0:
                    logits = policy.network.weight[:, k] + policy.network.bias
                    inside = inside + advantages[n] * torch.distributions.Categorical(logits=logits).log_prob(
                        torch.tensor(token)
                    )
        total = total - torch.nn.functional.logsigmoid(inside) / 3
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(total, list(policy.network.parameters()))])
    got, _ = gradient(policy, rollout, GroupPreference(), 2)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


def test_the_penalty_is_measured_against_the_reference() -> None:
    """Mean over tokens of k3 between the moved weights and the ones kept before."""
    policy, rollout = toy_rollout()
    before = (policy.network.weight + policy.network.bias[:, None]).detach().log_softmax(0)  # [V, K]
    moved(policy)
    now = (policy.network.weight + policy.network.bias[:, None]).detach().log_softmax(0)
    estimates = [
        float((before[token, k] - now[token, k]).expm1() + now[token, k] - before[token, k])
        for answer in rollout.trace.tokens
        for k, token in enumerate(answer.tolist())
        if token >= 0
    ]
    _, seen = gradient(policy, rollout, Reinforce(kl_coef=0.5, kl="k3", normalise="decision"), 3)
    assert seen["loss/kl"] == pytest.approx(sum(estimates) / len(estimates), rel=1e-4)
    assert seen["loss/kl"] > 0.01


def test_the_first_update_is_the_policy_gradient() -> None:
    policy, rollout = toy_rollout()
    on_policy, seen = gradient(policy, rollout, Grpo(clip_low=0.2, clip_high=0.2), 100, old="itself")
    plain, _ = gradient(policy, rollout, Reinforce(), 100)
    torch.testing.assert_close(on_policy, plain, atol=1e-6, rtol=1e-5)
    assert seen["loss/ratio"] == 1.0
    recorded, _ = gradient(policy, rollout, Grpo(clip_low=0.2, clip_high=0.2), 100, old="recorded")
    torch.testing.assert_close(recorded, on_policy, atol=1e-6, rtol=1e-5)


def test_samples_of_weight_zero_take_no_part() -> None:
    policy, rollout = toy_rollout()
    rows = torch.tensor([0, 1, 2, 3, 8, 9, 10, 11])
    got, _ = gradient(policy, rollout, Reinforce(normalise="sample"), 3, rows=rows)
    tokens, advantages = rollout.trace.tokens, loss_batch(rollout).advantages[:, 0]
    total = torch.zeros(())
    for n in rows.tolist():
        length = int((tokens[n] >= 0).sum())
        for k in range(length):
            log_prob = (policy.network.weight[:, k] + policy.network.bias).log_softmax(0)[tokens[n, k]]
            total = total - advantages[n] * log_prob / length / len(rows)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(total, list(policy.network.parameters()))])
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


def test_nothing_to_learn_from_adds_no_gradient() -> None:
    policy, rollout = toy_rollout()
    loss, updater = Reinforce(), Updater(policy, Reinforce(), Processes(), 8)
    batch = loss_batch(rollout, weight=torch.zeros(rollout.num_samples, 1))
    assert updater.accumulate(rollout, loss.views(rollout, torch.arange(2), GroupKey(0, 0, 0)), batch, "itself") is None
    assert updater.accumulate(None, [], None, "itself") is None
    assert all(p.grad is None for p in policy.network.parameters())


def test_kept_old_weights_are_evaluated_under_the_same_view() -> None:
    policy, rollout = toy_rollout()
    policy.weights.keep("old")
    with torch.no_grad():
        policy.network.bias.add_(torch.tensor([0.3, -0.2, 0.1, 0.0, 0.5]))
    kept, seen = gradient(policy, rollout, Grpo(clip_low=0.9, clip_high=9.0), 100, old="kept")
    recorded, also = gradient(policy, rollout, Grpo(clip_low=0.9, clip_high=9.0), 100, old="recorded")
    torch.testing.assert_close(kept, recorded, atol=1e-6, rtol=1e-5)  # the weights that drew it are the ones kept
    assert seen == pytest.approx(also, abs=1e-5) and abs(seen["loss/log_ratio_size"]) > 0.01


def test_the_reported_loss_is_what_was_differentiated_whatever_it_is_divided_by() -> None:
    """The first update of GRPO: every term is -A, so Dr. GRPO's loss is -sum of length * A / constant over samples."""
    policy, rollout = toy_rollout()
    loss = Grpo(clip_low=0.2, clip_high=0.2, normalise="constant", constant=7.0)
    lengths = (rollout.blocks[0].weight > 0).sum(1)
    advantages = loss_batch(rollout, weight=torch.ones(rollout.num_samples, 1)).advantages[:, 0]
    _, seen = gradient(policy, rollout, loss, 2, old="itself")
    assert seen["loss/total"] == pytest.approx(float(-(lengths * advantages).sum() / 7 / rollout.num_samples), abs=1e-6)
    assert abs(seen["loss/total"]) > 1e-3


def test_a_decision_that_leaves_share_counts_once_however_many_of_them_take_part() -> None:
    """Two answers made to share their first token; one of them is invalid."""
    policy, rollout = toy_rollout()
    block = rollout.blocks[0]
    edge, weight = block.edge.clone(), block.weight.clone()
    edge[1, 0], weight[:2, 0] = edge[0, 0], 0.5
    shared = replace(rollout, blocks=(replace(block, edge=edge, weight=weight),))
    rows = torch.tensor([0, 2, 3])
    alone, _ = gradient(policy, rollout, Reinforce(normalise="decision"), 100, rows=rows)
    among, _ = gradient(policy, shared, Reinforce(normalise="decision"), 100, rows=rows)
    torch.testing.assert_close(among, alone)


def test_decisions_that_take_no_part_cost_no_call_in_a_sample_that_does() -> None:
    _, rollout = toy_rollout()
    block = rollout.blocks[0]
    own = torch.arange(block.call.numel()).view_as(block.call)  # a network call for each decision
    rollout = replace(rollout, blocks=(replace(block, call=torch.where(block.call >= 0, own, -1)),))
    weight = (torch.arange(block.call.shape[1]) == 0).float().expand(block.call.shape)
    batch, key = loss_batch(rollout, weight=weight), GroupKey(0, 0, 0)
    (view,) = views_of(Reinforce(), rollout, torch.arange(rollout.num_samples), batch, key)
    assert isinstance(view, DecisionView)
    assert sorted(view.calls.tolist()) == own[:, 0].tolist()
