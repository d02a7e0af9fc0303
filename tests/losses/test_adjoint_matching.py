"""Adjoint matching: its target, and that it reaches the law of the theory."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, LossBatch
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.losses.adjoint_matching import AdjointMatching
from mmrl.samplers.memoryless import Memoryless
from mmrl.training.processes import Processes
from mmrl.training.update import Updater
from tests.linear_flow import LinearFlow, random_flow, sample_rollout, smooth

TEXTS = ("0.3", "-0.7")


def smooth_score(rollout: Rollout, outputs: Any, rows: Tensor) -> Tensor:
    return smooth(outputs.images, torch.tensor([float(text) for text in TEXTS])[rollout.prompt[rows]])


def moved(policy: LinearFlow) -> LinearFlow:
    with torch.no_grad():
        policy.network.matrix.mul_(1.2)
        policy.network.shift.add_(0.1)
    return policy


def step_of(
    policy: LinearFlow, rollout: Rollout, loss: AdjointMatching, micro_batch: int = 1000, score: Any = smooth_score
) -> float:
    """Returns the gradient of one optimizer step, as the trainer computes it, and the loss."""
    count = rollout.num_samples
    batch = LossBatch(torch.zeros(count, 1), torch.ones(count, 1), rollout.group, torch.zeros(count))
    updater = Updater(policy, loss, Processes(), micro_batch, score)
    carried = updater.differentiate(rollout, batch)
    assert carried is not None
    policy.network.zero_grad()
    seen = updater.accumulate(carried, loss.views(carried, torch.arange(count), GroupKey(0, 0, 0)), batch, "itself")
    assert seen is not None
    return float(seen.totals["loss/total"] / seen.weight["loss/total"])


def gradient_of(policy: LinearFlow) -> Tensor:
    return torch.cat(
        [parameter.grad.flatten() for parameter in policy.network.parameters() if parameter.grad is not None]
    )


def test_the_loss_is_the_distance_of_the_control_to_the_gradient_carried_back_by_the_reference() -> None:
    """By a loop over samples and steps, with products of matrices of the reference for the adjoint."""
    policy = random_flow()
    plan = Memoryless(num_steps=4).plan(policy, GroupKey(0, 0, 0), 3)
    base = policy.network.matrix.detach().clone(), policy.network.shift.detach().clone()
    rollout = sample_rollout(moved(policy), plan, TEXTS)
    got = step_of(policy, rollout, AdjointMatching(strength=0.8))
    trajectory, total = rollout.trace.trajectory, torch.zeros(())
    for row in range(6):
        told = float(TEXTS[row // 3])
        media = rollout.outputs.images[row]  # type: ignore[index]
        adjoint = -0.8 * (media.cos() + told * media / 2)
        for number in (3, 2, 1, 0):
            move, state = plan.steps[number].transition, trajectory.state[trajectory.node[row, number]]
            if number < 3:
                shift = (policy.network.matrix[number] - base[0][number]) @ state
                shift = shift + policy.network.shift[number] - base[1][number]
                control = move.velocity * shift / move.std
                total = total + (control + move.std * adjoint).square().mean() / 3 / 6
            adjoint = (move.state * torch.eye(2) + move.velocity * base[0][number]).T @ adjoint
    assert got == pytest.approx(float(total.detach()), rel=1e-5)
    expected = torch.autograd.grad(total, list(policy.network.parameters()))
    torch.testing.assert_close(gradient_of(policy), torch.cat([p.flatten() for p in expected]), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("micro_batch", [1, 7])
def test_micro_batches_change_nothing(micro_batch: int) -> None:
    policy = random_flow()
    rollout = sample_rollout(
        moved(policy), Memoryless(num_steps=4, train_fraction=0.7).plan(policy, GroupKey(0, 0, 0), 3), TEXTS
    )
    whole = step_of(policy, rollout, AdjointMatching(strength=2.0)), gradient_of(policy).clone()
    parts = step_of(policy, rollout, AdjointMatching(strength=2.0), micro_batch), gradient_of(policy)
    assert parts[0] == pytest.approx(whole[0], rel=1e-5)
    torch.testing.assert_close(parts[1], whole[1], atol=1e-6, rtol=1e-4)


def test_without_strength_the_target_is_zero_and_the_loss_twice_the_kl() -> None:
    policy = random_flow()
    rollout = sample_rollout(moved(policy), Memoryless(num_steps=4).plan(policy, GroupKey(0, 0, 0), 3), TEXTS)
    loss = AdjointMatching(strength=0.0)
    (view,) = loss.views(rollout, torch.arange(6), GroupKey(0, 0, 0))
    with policy.weights("reference"), torch.no_grad():
        reference: Any = policy.forward(rollout, view)
    kl = policy.forward(rollout, view).kl(reference)  # type: ignore[union-attr]
    assert step_of(policy, rollout, loss) == pytest.approx(2 * float(kl.detach().mean()), rel=1e-5)
    with policy.weights("reference"):
        assert step_of(policy, rollout, loss) == 0


@pytest.mark.slow  # many steps of training
def test_a_gaussian_reaches_the_law_tilted_by_the_reward() -> None:
    """Data N(m, s^2 I), reward c x - x^2 / 4: the law tilted by exp(strength * reward) is Gaussian with precision
    1 / s^2 + strength / 2 and mean (m / s^2 + strength * c) over that precision.

    Velocities that are linear in the latents hold both the base, E[noise - clean | x], and the optimum. On a grid the
    base is Gaussian too, a little off the data: m and s are measured on its own samples.
    """
    steps, strength, tilt = 8, 2.0, 0.7
    policy = LinearFlow(num_steps=steps, size=1)
    with torch.no_grad():
        for number in range(steps):
            sigma, mean, variance = 1 - number / steps, -0.5, 0.6
            total = (1 - sigma) ** 2 * variance + sigma**2
            slope = (sigma - (1 - sigma) * variance) / total  # cov(noise - clean, x) / var(x)
            policy.network.matrix[number] = slope
            policy.network.shift[number] = -mean - slope * (1 - sigma) * mean
    policy.records_trajectories = True
    policy.weights.keep("reference")
    sampler, loss = Memoryless(num_steps=steps), AdjointMatching(strength=strength)

    def score(rollout: Rollout, outputs: Any, rows: Tensor) -> Tensor:
        images: Tensor = outputs.images
        return (tilt * images - images.square() / 4).sum(1)

    def samples(number: int, count: int) -> Rollout:
        return policy.rollout(
            sample_rollout(policy, sampler.plan(policy, GroupKey(0, 0, 0), 1), ("0",)).prompts,
            [sampler.plan(policy, GroupKey(3, number, 0), count)],
            [GroupKey(3, number, 0)],
        )

    base = samples(999, 40_000).trace.clean
    precision = 1 / float(base.var()) + strength / 2
    wanted = (float(base.mean()) / float(base.var()) + strength * tilt) / precision
    optimizer = torch.optim.Adam(policy.network.parameters(), lr=0.08)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 70)
    for number in range(70):
        step_of(policy, samples(number, 400), loss, score=score)
        optimizer.step()
        schedule.step()
    found = samples(1000, 40_000).trace.clean
    assert float(found.mean()) == pytest.approx(wanted, abs=0.03)
    assert float(found.std()) == pytest.approx(1 / math.sqrt(precision), abs=0.03)
    assert abs(wanted - float(base.mean())) > 0.4 and abs(1 / math.sqrt(precision) - float(base.std())) > 0.07


def test_a_strength_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="strength must be at least 0, got -1"):
        build("losses", {"name": "adjoint_matching", "strength": -1})
