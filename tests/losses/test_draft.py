"""DRaFT and AlignProp: the steps with a gradient, and the update of the mean reward."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, LossBatch
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.losses.draft import Draft
from mmrl.samplers.ode import ODE
from mmrl.scoring.scorer import RewardTerm, Scorer
from mmrl.training.processes import Processes
from mmrl.training.update import Updater
from tests.linear_flow import LinearFlow, Smooth, random_flow, sample_rollout
from tests.parameters import in_one_test

STEPS, GROUP = 4, 3
SCORER = Scorer((RewardTerm("smooth", Smooth()), RewardTerm("twice", Smooth(), 2.0)))
KEY = GroupKey(1, 0, 0)


def rollout_of(policy: LinearFlow) -> Rollout:
    return sample_rollout(policy, ODE(num_steps=STEPS).plan(policy, KEY, GROUP), ("0.3", "-0.7", "1.1"))


def gradient(
    policy: LinearFlow, rollout: Rollout, loss: Any, micro_batch: int, rows: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the gradient of one optimizer step, as the trainer computes it."""
    rows = torch.arange(rollout.num_samples) if rows is None else rows
    weight = torch.zeros(rollout.num_samples, 1)
    weight[rows] = 1.0
    batch = LossBatch(torch.zeros_like(weight), weight, rollout.group, weight[:, 0])
    policy.network.zero_grad()

    def score(at: Rollout, outputs: Any, samples: Tensor) -> Tensor:
        return SCORER.score_in_graph(at, outputs, samples, 0)

    updater = Updater(policy, loss, Processes(), micro_batch, score)
    seen = updater.accumulate(rollout, loss.views(rollout, rows, KEY), batch, "itself")
    assert seen is not None
    found = [parameter.grad.flatten() for parameter in policy.network.parameters() if parameter.grad is not None]
    return torch.cat(found), {name: seen.totals[name] / seen.weight[name] for name in seen.totals}


def test_the_update_is_the_gradient_of_the_mean_weighted_reward_through_the_whole_chain() -> None:
    policy = random_flow()
    rollout = rollout_of(policy)
    got, seen = gradient(policy, rollout, Draft(num_steps=STEPS), 100)
    total = torch.zeros(())
    for row in range(rollout.num_samples):
        told = float(rollout.prompts[row // GROUP].text)
        latents = rollout.trace.trajectory.state[rollout.trace.trajectory.node[row, 0]]
        for step in range(STEPS):
            latents = latents - (policy.network.matrix[step] @ latents + policy.network.shift[step] + told) / STEPS
        total = total + 3 * (latents.sin().sum() + told * latents.square().sum() / 4) / rollout.num_samples
    expected = torch.autograd.grad(-total, list(policy.network.parameters()))
    torch.testing.assert_close(got, torch.cat([part.flatten() for part in expected]), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(seen["loss/total"], -total.detach())
    torch.testing.assert_close(seen["loss/reward"], total.detach())


@pytest.mark.slow
@pytest.mark.parametrize("loss", [Draft(2), Draft((1, 4)), Draft(renoised=2)])
@pytest.mark.parametrize("micro_batch", [1, 5])
def test_micro_batches_and_absent_samples_change_nothing(loss: Draft, micro_batch: int) -> None:
    policy = random_flow()
    rollout = rollout_of(policy)
    for rows in (torch.arange(9), torch.tensor([0, 4, 5, 8])):
        (whole, seen), (parts, also) = (gradient(policy, rollout, loss, size, rows) for size in (100, micro_batch))
        assert whole.abs().max() > 1e-3
        torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(seen, also)


def test_steps_before_the_truncation_get_no_gradient() -> None:
    policy = random_flow()
    gradient(policy, rollout_of(policy), Draft(num_steps=2), 100)
    grad = policy.network.matrix.grad
    assert grad is not None and (grad[:2] == 0).all() and (grad[2:] != 0).all()


@pytest.mark.slow
def test_random_truncation_draws_each_number_of_steps_alike_by_the_draw_alone() -> None:
    policy, loss = random_flow(), Draft((1, 4))
    rollout = rollout_of(policy)
    counts = torch.zeros(5)
    for number in range(400):
        key = GroupKey(0, 7, number)
        seen: dict[int, int] = {}
        for view in loss.views(rollout, torch.arange(9), key):
            for row in view.sample.tolist():
                seen[row] = view.num_steps
        assert sorted(seen) == list(range(9))
        for prompt in range(3):  # a group is cut at one step
            assert len({seen[GROUP * prompt + member] for member in range(GROUP)}) == 1
            counts[seen[GROUP * prompt]] += 1
        alone = loss.views(rollout, torch.tensor([4, 5]), key)
        assert [(view.sample.tolist(), view.num_steps) for view in alone] == [([4, 5], seen[4])]
    assert counts[0] == 0
    assert ((counts[1:] / 1200 - 0.25).abs() < 0.05).all()  # 4 standard deviations


def test_a_range_of_one_number_is_that_number() -> None:
    policy = random_flow()
    rollout = rollout_of(policy)
    fixed, ranged = (gradient(policy, rollout, Draft(steps), 100)[0] for steps in (3, (3, 3)))
    assert torch.equal(fixed, ranged)
    declared = [Draft(num_steps).declaration for num_steps in ((1, 4), 3, (2, 5))]
    assert [one.calls_per_sample for one in declared] == [2.5, 3, 3.5]
    assert [one.num_gradient_steps for one in declared] == [4, 3, 5]


def test_noising_anew_counts_every_denoising_alike_and_draws_new_noise_each_step() -> None:
    policy = random_flow()
    rollout = rollout_of(policy)
    loss = Draft(renoised=2)
    _, again = loss.views(rollout, torch.tensor([1, 7]), KEY)
    assert again.sample.tolist() == [1, 1, 7, 7] and again.column.tolist() == [1, 2, 1, 2]
    assert len(set(again.noise_seed)) == 4 and loss.declaration.calls_per_sample == 3
    assert set(again.noise_seed).isdisjoint(loss.views(rollout, torch.tensor([1, 7]), GroupKey(1, 0, 1))[1].noise_seed)
    got, _ = gradient(policy, rollout, loss, 100)
    plain, _ = gradient(policy, rollout, Draft(), 100)
    views = loss.views(rollout, torch.arange(9), KEY)
    rendered: Any = policy.forward(rollout, views[1])
    total = SCORER.score_in_graph(rollout, rendered.outputs, rendered.sample, 0).sum()
    anew = torch.cat([part.flatten() for part in torch.autograd.grad(-total, list(policy.network.parameters()))])
    torch.testing.assert_close(got, (9 * plain + anew) / 27, atol=1e-6, rtol=1e-5)


@in_one_test(
    ("settings", "said"),
    [
        ({"num_steps": 0}, "num_steps must be at least 1, got 0"),
        ({"num_steps": [3, 2]}, "num_steps must be one whole number or two ascending ones, got .3, 2."),
        ({"num_steps": [0, 2]}, "num_steps.0 must be at least 1, got 0"),
        ({"num_steps": 2, "renoised": 1}, "0 unless num_steps is 1"),
        ({"renoised": -1}, "renoised must be at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build("losses", {"name": "draft"} | settings)
