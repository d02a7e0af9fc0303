"""Neighbor GRPO: the paper's formulas one by one, its gradient, and GRPO where the normaliser of the choice adds 0."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.core.contracts import LossBatch, OutputsByWeights
from mmrl.core.data import Rollout
from mmrl.core.forward_outputs import GaussianDecisions
from mmrl.core.keys import GroupKey
from mmrl.losses.grpo import Grpo
from mmrl.losses.neighbor import Neighbor as NeighborLoss
from mmrl.samplers.neighbor import Neighbor as NeighborSampler
from mmrl.training.processes import Processes
from mmrl.training.update import Updater
from tests.linear_flow import LinearFlow, random_flow, sample_rollout

ADVANTAGES = torch.tensor([1.2, -0.3, 0.4, -1.3, -0.5, 0.9, -0.6, 0.2])  # of two groups of four; each adds up to 0
WIDE: dict[str, Any] = {"clip_low": 1.0, "clip_high": math.inf}


def rolled(policy: LinearFlow, **settings: Any) -> Rollout:
    sampler = NeighborSampler(num_steps=4, sigmas="uniform", **({"anchors": 2} | settings))
    return sample_rollout(policy, sampler.plan(policy, GroupKey(5, 0, 0), 4))


def moved(policy: LinearFlow, size: float = 0.3) -> None:
    source = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=source))


def batch_of(rollout: Rollout, advantages: Tensor = ADVANTAGES) -> LossBatch:
    rows = advantages[:, None]
    return LossBatch(rows, torch.ones_like(rows), rollout.group, advantages)


def gradient(policy: LinearFlow, rollout: Rollout, loss: Any, batch: LossBatch, micro_batch: int = 99) -> Tensor:
    views = loss.views(rollout, torch.arange(rollout.num_samples), GroupKey(0, 0, 0))
    policy.network.zero_grad()
    Updater(policy, loss, Processes(), micro_batch).accumulate(rollout, views, batch, "recorded")
    return torch.cat([p.grad.flatten().clone() for p in policy.network.parameters() if p.grad is not None])


def slow_loss(policy: LinearFlow, rollout: Rollout, advantages: Tensor, temperature: float, clip: float) -> Tensor:
    """Eq. 8 and 9 in float64 with a loop over anchors, steps and members; the trace has the states of the anchors."""
    decided, block, total = rollout.trace.decided, rollout.blocks[0], torch.zeros((), dtype=torch.float64)
    for at in range(len(decided.state)):
        state, sigma, told = decided.state[at : at + 1], decided.sigma[at : at + 1], decided.prompt[at : at + 1]
        v = policy.velocity(state, sigma, rollout.trace.conditioning[told])
        anchor = (state + decided.transition[at, 1] * v)[0].double()  # where the anchor would be next
        members = [row for row in range(8) if at in block.call[row].tolist()]
        columns = [block.call[row].tolist().index(at) for row in members]
        candidates = [decided.child[block.edge[r, c]].double() for r, c in zip(members, columns, strict=True)]

        def choice(x: Tensor, among: list[Tensor]) -> Tensor:
            logits = [-(candidate - x).square().sum() / temperature for candidate in among]
            return torch.stack(logits).softmax(0)

        old = choice(decided.mean[at].double(), candidates)
        ratios = choice(anchor, candidates) / old
        for row, ratio in zip(members, ratios, strict=True):
            terms = torch.minimum(advantages[row] * ratio, advantages[row] * ratio.clamp(1 - clip, 1 + clip))
            total = total - terms / (8 * block.call.shape[1])
    return total


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("clip", [0.1, 50.0])
def test_the_loss_and_its_gradient_are_those_of_a_slow_loop(temperature: float, clip: float) -> None:
    policy = random_flow(reduction="sum")
    rollout = rolled(policy, temperature=temperature)
    moved(policy)
    expected = torch.autograd.grad(
        slow_loss(policy, rollout, ADVANTAGES, temperature, clip), list(policy.network.parameters())
    )
    loss = NeighborLoss(clip_low=min(clip, 1.0), clip_high=clip)
    got = gradient(policy, rollout, loss, batch_of(rollout))
    assert got.norm() > 1e-3
    assert_close(got, torch.cat([part.flatten() for part in expected]), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("reduction", ["mean", "sum", "rms"])
def test_the_choice_is_a_softmax_of_squared_distances_in_the_unit_of_the_reduction(reduction: Any) -> None:
    """Against torch.distributions, on three draws from one state and two from another."""
    source = torch.Generator().manual_seed(4)
    mean, old = (torch.randn(2, 2, 5, generator=source, dtype=torch.float64) for _ in range(2))
    sample, std = torch.randn(5, 2, 5, generator=source), torch.tensor([0.8, 1.7], dtype=torch.float64)
    call = torch.tensor([0, 1, 0, 0, 1])
    entry = torch.tensor([[0, 1], [2, -1], [3, 4]])
    new, before = (GaussianDecisions(m, std, sample, call, entry, reduction) for m in (mean, old))
    divisor = {"mean": 10, "sum": 1, "rms": math.sqrt(10)}[reduction]
    expected = torch.zeros(6, dtype=torch.float64)
    for at in (0, 1):
        edges = (call == at).nonzero()[:, 0]
        choice = [
            torch.distributions.Categorical(
                logits=-(sample[edges].double() - m[at]).square().sum((1, 2)) / (2 * std[at] ** 2 * divisor)
            )
            for m in (mean, old)
        ]
        expected[edges] = torch.log(choice[0].probs / choice[1].probs)
    assert_close(new.choice_log_ratio(before), expected[entry] * (entry >= 0))


def test_where_distances_are_large_small_changes_are_not_lost() -> None:
    """d = 65,536: distances of thousands, of which float32 keeps four digits behind the point."""
    source = torch.Generator().manual_seed(4)
    sample = torch.randn(4, 65536, generator=source)
    old = sample[:1] + 0.1 * torch.randn(1, 65536, generator=source)
    mean = old + 1e-7 * sample[1:2]
    call, entry = torch.zeros(4, dtype=torch.int64), torch.arange(4)[:, None]
    new, before = (GaussianDecisions(m, torch.ones(1), sample, call, entry, "sum") for m in (mean, old))
    exact = [-(sample.double() - m.double()).square().sum(1) / 2 for m in (mean, old)]
    expected = exact[0].log_softmax(0) - exact[1].log_softmax(0)
    assert_close(new.choice_log_ratio(before).double()[:, 0], expected, atol=1e-5, rtol=1e-3)


def test_the_first_ratio_is_one_bit_for_bit() -> None:
    policy = random_flow()
    rollout = rolled(policy)
    loss = NeighborLoss()
    (view,) = loss.views(rollout, torch.arange(8), GroupKey(0, 0, 0))
    trained: Any = policy.forward(rollout, view)
    measures = loss.measure(OutputsByWeights(trained, trained.detach()))
    batch = batch_of(rollout)
    wide = replace(batch, advantages=batch.advantages.expand(8, 4), weight=batch.weight.expand(8, 4))
    assert (loss(measures, wide).metrics["ratio"] == 1).all()


@pytest.mark.slow
def test_its_gradient_equals_finite_differences() -> None:
    policy = random_flow(reduction="sum")
    rollout = rolled(policy)
    moved(policy)
    got = gradient(policy, rollout, NeighborLoss(**WIDE), batch_of(rollout))
    at = 0
    for parameter in policy.network.parameters():
        flat = parameter.data.view(-1)
        for place in range(0, flat.numel(), 3):
            before, sides = flat[place].item(), []
            for shift in (1e-2, -1e-2):
                flat[place] = before + shift
                sides.append(float(slow_loss(policy, rollout, ADVANTAGES, 1.0, math.inf).detach()))
            flat[place] = before
            assert (sides[0] - sides[1]) / 2e-2 == pytest.approx(float(got[at + place]), abs=2e-4, rel=2e-3)
        at += flat.numel()


def test_at_first_and_with_advantages_that_add_up_to_zero_its_gradient_is_that_of_grpo() -> None:
    """R-neighbor: squared distances weighted by advantages, the paper's section 3.2; not where they add up to more."""
    policy = random_flow()
    rollout = rolled(policy)
    plain, chosen = Grpo(clip_low=0.2, clip_high=0.2), NeighborLoss()
    ours = gradient(policy, rollout, chosen, batch_of(rollout))
    assert ours.norm() > 1e-3
    assert_close(ours, gradient(policy, rollout, plain, batch_of(rollout)), atol=1e-6, rtol=1e-4)
    shifted = [gradient(policy, rollout, loss, batch_of(rollout, ADVANTAGES + 1)) for loss in (plain, chosen)]
    assert (shifted[0] - shifted[1]).norm() > 0.1 * ours.norm()


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_micro_batches_change_nothing(micro_batch: int) -> None:
    policy = random_flow()
    rollout = rolled(policy)
    moved(policy)
    loss = NeighborLoss(kl_coef=0.1)
    whole = gradient(policy, rollout, loss, batch_of(rollout))
    assert_close(gradient(policy, rollout, loss, batch_of(rollout), micro_batch), whole, atol=1e-6, rtol=1e-4)


def test_members_that_are_not_learned_from_are_chosen_from_all_the_same() -> None:
    policy = random_flow(reduction="sum")
    rollout = rolled(policy)
    moved(policy)
    batch = batch_of(rollout)
    kept = torch.tensor([1.0, 1, 0, 1, 1, 1, 1, 0])[:, None]
    got = gradient(policy, rollout, NeighborLoss(**WIDE), replace(batch, weight=kept))
    expected = slow_loss(policy, rollout, ADVANTAGES * kept[:, 0] * 8 / 6, 1.0, math.inf)
    grads = torch.autograd.grad(expected, list(policy.network.parameters()))
    assert_close(got, torch.cat([part.flatten() for part in grads]), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("settings", [{"spread": 0.0}, {"group_size": 1}])
def test_the_same_for_all_or_one_alone_teaches_nothing(settings: dict[str, Any]) -> None:
    """Nothing tells the members apart, or there is one: the choice does not depend on the weights."""
    policy = random_flow()
    size = settings.pop("group_size", 4)
    sampler = NeighborSampler(num_steps=4, sigmas="uniform", anchors=2, **settings)
    rollout = sample_rollout(policy, sampler.plan(policy, GroupKey(5, 0, 0), size))
    moved(policy)
    advantages = torch.tensor([1.0, -0.5, 2.0, 0.3] * 2)[: rollout.num_samples]
    got = gradient(policy, rollout, NeighborLoss(), batch_of(rollout, advantages))
    assert_close(got, torch.zeros_like(got), atol=1e-6, rtol=0)


def test_settings_and_what_it_reads() -> None:
    loss = NeighborLoss()
    assert (loss.clip_low, loss.clip_high, loss.scope, loss.declaration.min_group_size) == (0.2, 0.2, "decision", 2)
    assert loss.declaration.requires == {"choice"} and loss.needs == {"old"}
