"""Members with small advantages are evaluated by chance: exact on those that are kept, right in expectation."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Loss
from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import GroupKey, subgroup
from mmrl.losses.gmpo import Gmpo
from mmrl.losses.grpo import Grpo
from mmrl.losses.gspo import Gspo
from mmrl.losses.nft import Nft
from mmrl.losses.reinforce import Reinforce
from mmrl.plans.flow import Plan, Step, Transition
from mmrl.samplers.base.kernels import ode
from mmrl.training.member_sampling import check_min_advantage, member_importance
from mmrl.training.processes import Processes
from mmrl.training.update import Updater, views_of
from tests.linear_flow import LinearFlow
from tests.toys import GroupPreference, ToyTokens, loss_batch, toy_rollout

KEY = GroupKey(3, 1, 0)


def gradient(
    policy: ToyTokens | LinearFlow, rollout: Rollout, loss: Loss, importance: Tensor | None, micro_batch: int = 100
) -> Tensor:
    policy.network.zero_grad()
    batch = loss_batch(rollout)
    views = views_of(loss, rollout, torch.arange(rollout.num_samples), batch, KEY)
    metrics = Updater(policy, loss, Processes(), micro_batch).accumulate(rollout, views, batch, "recorded", importance)
    assert metrics is not None
    return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten().clone()
                      for p in policy.network.parameters()])  # fmt: skip


def moved(policy: ToyTokens | LinearFlow) -> None:
    policy.weights.keep("reference")
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(torch.linspace(-0.1, 0.15, parameter.numel()).view_as(parameter))


def subsets(probability: list[float]) -> Iterator[tuple[float, Tensor]]:
    """Every choice of members: its probability, and what each member counts in it [B, 1]."""
    for chosen in product((False, True), repeat=len(probability)):
        pairs = list(zip(chosen, probability, strict=True))
        chance = torch.tensor([p if kept else 1 - p for kept, p in pairs], dtype=torch.float64).prod()
        yield float(chance), torch.tensor([[1 / p if kept else 0.0] for kept, p in pairs])


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [1, 100])
@pytest.mark.parametrize("loss", [
    Grpo(clip_low=0.02, clip_high=0.02, kl_coef=0.3, kl="k3"),
    Grpo(clip_low=0.02, clip_high=0.02, normalise="group"),
    Gspo(clip_low=0.02, clip_high=0.02),
    Gmpo(),
])  # fmt: skip
def test_the_mean_over_all_choices_is_the_gradient_of_all_samples(loss: Loss, micro_batch: int) -> None:
    policy, rollout = toy_rollout(2, 3)
    moved(policy)
    whole = gradient(policy, rollout, loss, None)
    probability = [0.5, 1.0, 0.2, 0.1, 0.7, 0.9]
    mean = sum(chance * gradient(policy, rollout, loss, kept, micro_batch) for chance, kept in subsets(probability))
    assert whole.abs().max() > 1e-3
    torch.testing.assert_close(torch.as_tensor(mean), whole, atol=2e-6, rtol=1e-4)


def test_the_samples_that_are_kept_have_the_gradient_of_a_plain_loop() -> None:
    policy, rollout = toy_rollout()
    importance = torch.tensor([[0.0], [1], [2.5], [0], [1], [0], [0], [4], [0], [0], [1.5], [1]])
    calls = policy.num_calls
    got = gradient(policy, rollout, Reinforce(), importance)
    assert policy.num_calls - calls == 6
    tokens, total = rollout.trace.tokens, torch.zeros(())
    for n, counts in enumerate(importance[:, 0].tolist()):
        log_probs = [
            torch.log_softmax(policy.network.weight[:, k] + policy.network.bias, 0)[token]
            for k, token in enumerate(tokens[n].tolist())
            if token >= 0
        ]
        total = total - counts * loss_batch(rollout).advantages[n, 0] * torch.stack(log_probs).mean() / len(tokens)
    expected = torch.autograd.grad(total, [policy.network.weight, policy.network.bias])
    torch.testing.assert_close(got, torch.cat([g.flatten() for g in expected]), atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_a_shared_decision_counts_as_if_all_its_samples_were_there() -> None:
    """Two roots of two steps, the second of which branches in two: the first decision is shared by pairs."""
    policy = LinearFlow(num_steps=3)
    random = Transition(1.0, -1 / 3, 0.4)
    steps = (Step(1, 2 / 3, random), Step(2 / 3, 1 / 3, random, branch=2), Step(1 / 3, 0, ode(1 / 3, 0)))
    rollout = policy.rollout([Prompt("0.5")], [Plan(2, steps, 1.0)], [GroupKey(0, 0, 0)])
    assert rollout.blocks[0].weight.tolist() == [[0.5, 1.0]] * 4
    moved(policy)
    loss = Grpo(clip_low=0.5, clip_high=0.5, normalise="decision")
    whole = gradient(policy, rollout, loss, None)
    probability = [0.3, 0.6, 1.0, 0.8]
    mean = sum(chance * gradient(policy, rollout, loss, kept) for chance, kept in subsets(probability))
    assert whole.abs().max() > 1e-3
    torch.testing.assert_close(torch.as_tensor(mean), whole, atol=2e-6, rtol=1e-4)
    before = policy.num_calls
    gradient(policy, rollout, loss, torch.tensor([[2.0], [0], [0], [0]]))
    assert policy.num_calls - before == 2  # the path of one sample


@pytest.mark.slow
def test_the_chance_of_a_sample_is_its_advantage_and_it_counts_the_inverse() -> None:
    _, rollout = toy_rollout(1, 6)
    advantages = torch.tensor([[0.0], [-0.2], [0.4], [-0.9], [1.0], [-3.0]])
    expected = torch.tensor([0.1, 0.2, 0.4, 0.9, 1, 1])
    batch, keys = loss_batch(rollout, advantages=advantages), [GroupKey(0, n, 0) for n in range(3000)]
    found = [member_importance(batch, 1.0, key) for key in keys]
    counts = torch.stack([one for one in found if one is not None])[:, :, 0]  # [3000, 6]
    kept = (counts > 0).double().mean(0)
    assert ((kept - expected).abs() <= 4 * (expected * (1 - expected) / 3000).sqrt()).all()
    torch.testing.assert_close(counts.amax(0), 1 / expected)
    small = member_importance(batch, 1e-6, KEY)
    assert small is not None and small[1:, 0].tolist() == [1] * 5


def test_the_largest_decision_of_a_sample_decides() -> None:
    _, rollout = toy_rollout(1, 2)
    advantages = torch.tensor([[0.0, 0.0, -2.0, 0.1], [0.1, 0.1, 0.1, 0.1]])
    found = [member_importance(loss_batch(rollout, advantages=advantages), 1.0, GroupKey(0, n, 0)) for n in range(50)]
    assert all(one is not None and one[0, 0] == 1 for one in found)
    assert {round(float(one[1, 0]), 4) for one in found if one is not None} == {0.0, 10.0}


def test_what_is_kept_of_a_prompt_depends_on_no_other_prompt() -> None:
    """As where another process has the others; several groups of one prompt stay together."""
    _, rollout = toy_rollout(3, 4)
    group = rollout.group.clone()
    group[9] = subgroup(2, 1)
    batch = loss_batch(rollout, group=group)
    whole = member_importance(batch, 2.0, KEY)
    assert whole is not None and 0 < int((whole == 0).sum()) < 12
    for index in range(3):
        rows = rollout.group == index
        alone = member_importance(
            loss_batch(rollout, advantages=batch.advantages[rows], weight=batch.weight[rows], group=group[rows]),
            2.0, KEY,
        )  # fmt: skip
        torch.testing.assert_close(alone, whole[rows])


def test_without_a_threshold_every_sample_counts_once() -> None:
    _, rollout = toy_rollout()
    assert member_importance(loss_batch(rollout), 0.0, KEY) is None
    assert member_importance(None, 1.0, KEY) is None


@pytest.mark.parametrize(("loss", "reads"), [
    (GroupPreference(), "compares the samples of a group"),
    (Nft(), "learns from denoising"),
])  # fmt: skip
def test_a_loss_that_needs_all_samples_is_refused(loss: Loss, reads: str) -> None:
    message = f"updates.min_advantage leaves out single samples of losses on decisions, but loss 'it' {reads}"
    with pytest.raises(ConfigError, match=message):
        check_min_advantage(0.5, loss, "it")
    check_min_advantage(0.0, loss, "it")
    check_min_advantage(0.5, Grpo(), "it")
