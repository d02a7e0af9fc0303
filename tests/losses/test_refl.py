"""ReFL: one late step carries the gradient, and good images teach nothing."""

from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.declarations import LossDeclaration
from mmrl.core.plugins import build
from mmrl.losses.draft import Draft
from mmrl.losses.refl import Refl
from tests.linear_flow import random_flow
from tests.losses.test_draft import GROUP, KEY, SCORER, gradient, rollout_of


def test_the_update_is_the_gradient_of_the_hinge_on_the_predicted_clean_latents() -> None:
    policy = random_flow()
    rollout, trajectory = rollout_of(policy), rollout_of(policy).trace.trajectory
    margin = float(SCORER.score(rollout, 0).total.median())
    got, _ = gradient(policy, rollout, Refl(left_out=2, margin=margin, scale=0.7), 100)
    total, num_good = torch.zeros(()), 0
    for row in range(rollout.num_samples):
        told = float(rollout.prompts[row // GROUP].text)
        state = trajectory.state[trajectory.node[row, 1]]  # before the second of four steps: sigma 3/4
        clean = state - 0.75 * (policy.network.matrix[1] @ state + policy.network.shift[1] + told)
        reward = 3 * (clean.sin().sum() + told * clean.square().sum() / 4)
        num_good += int(reward > margin)
        total = total + 0.7 * torch.relu(margin - reward) / rollout.num_samples
    assert 0 < num_good < rollout.num_samples
    expected = torch.cat([part.flatten() for part in torch.autograd.grad(total, list(policy.network.parameters()))])
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


def test_the_last_step_without_a_margin_is_draft_of_one_step() -> None:
    policy = random_flow()
    rollout = rollout_of(policy)
    refl, _ = gradient(policy, rollout, Refl(left_out=0, margin=None, scale=1.0), 100)
    draft, _ = gradient(policy, rollout, Draft(1), 100)
    torch.testing.assert_close(refl, draft)


def test_each_group_takes_one_of_the_steps_and_all_are_taken() -> None:
    rollout, loss = rollout_of(random_flow()), Refl(left_out=(1, 3))
    taken = set()
    for number in range(30):
        views = loss.views(rollout, torch.arange(9), KEY.__class__(0, 0, number))
        assert sorted(row for view in views for row in view.sample.tolist()) == list(range(9))
        assert all(view.num_steps == 1 for view in views)
        taken |= {view.left_out for view in views}
    assert taken == {1, 2, 3} and loss.declaration == LossDeclaration(num_gradient_steps=4)


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_micro_batches_change_nothing(micro_batch: int) -> None:
    policy = random_flow()
    rollout, loss = rollout_of(policy), Refl(left_out=(0, 3), margin=3.0, scale=1.0)
    (whole, seen), (parts, also) = (gradient(policy, rollout, loss, size) for size in (100, micro_batch))
    assert whole.abs().max() > 1e-3
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(seen, also)


@pytest.mark.parametrize(
    ("settings", "said"), [({"left_out": -1}, "left_out must be"), ({"scale": 0}, "scale must be above 0, got 0")]
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build("losses", {"name": "refl"} | settings)
