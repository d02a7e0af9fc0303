"""A floor of the entropy: the mean entropy of a step, however the work is cut, and what it does to the gradient."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Loss
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.losses.dpo import Dpo
from mmrl.losses.grpo import Grpo
from mmrl.losses.gspo import Gspo
from mmrl.losses.reinforce import Reinforce
from mmrl.plans.offline import OfflinePlan, check_mean_entropy
from mmrl.training.processes import Processes
from mmrl.training.update import Updater
from tests.toys import ToyTokens, loss_batch, toy_rollout

ROWS = torch.tensor([0, 2, 3, 5])


class _Two(Processes):
    """Two processes of which the other one has these two sums."""

    def __init__(self, other: tuple[float, float]) -> None:
        super().__init__()
        self.other = torch.tensor(other, dtype=torch.float64)

    def sum(self, values: Tensor) -> Tensor:
        return values + self.other if values.shape == (2,) else values


def _policy() -> tuple[ToyTokens, Rollout]:
    """Returns a policy whose decisions have an entropy, and a rollout of it."""
    policy, rollout = toy_rollout()
    plain = policy.forward

    def with_entropy(*given: Any) -> Any:
        decisions = plain(*given)
        return replace(decisions, entropy=decisions.values.square())

    cast(Any, policy).forward = with_entropy
    return policy, rollout


def _mean(rollout: Rollout) -> float:
    """Returns the mean of -log_prob over the tokens of `ROWS`, as they were sampled."""
    values = [
        -float(rollout.trace.log_prob[row, k])
        for row in ROWS.tolist()
        for k, token in enumerate(rollout.trace.tokens[row].tolist())
        if token >= 0
    ]
    return sum(values) / len(values)


def _gradient(
    policy: ToyTokens, rollout: Rollout, loss: Loss, micro_batch: int = 100, processes: Processes | None = None
) -> tuple[Tensor, dict[str, float]]:
    weight = torch.zeros(rollout.num_samples, 1)
    weight[ROWS] = 1.0
    policy.network.zero_grad()
    metrics = Updater(policy, loss, processes or Processes(), micro_batch).accumulate(
        rollout, loss.views(rollout, ROWS, GroupKey(0, 0, 0)), loss_batch(rollout, weight=weight), "recorded"
    )
    assert metrics is not None
    means = {name: float(total / metrics.weight[name]) for name, total in metrics.totals.items()}
    return torch.cat([p.grad.flatten().clone() for p in policy.network.parameters() if p.grad is not None]), means


@pytest.mark.parametrize("micro_batch", [1, 3, 100])
@pytest.mark.parametrize("make", [Reinforce, Grpo, Gspo])
def test_below_the_floor_the_gradient_is_that_with_a_bonus_and_else_that_without(make: Any, micro_batch: int) -> None:
    policy, rollout = _policy()
    mean = _mean(rollout)
    without, _ = _gradient(policy, rollout, make())
    rewarded, _ = _gradient(policy, rollout, make(entropy_coef=0.3))
    assert (rewarded - without).abs().max() > 1e-3
    below, seen = _gradient(policy, rollout, make(entropy_coef=0.3, entropy_floor=mean + 1e-4), micro_batch)
    torch.testing.assert_close(below, rewarded, atol=1e-6, rtol=1e-5)
    assert seen["loss/entropy_bonus"] == 1
    above, seen = _gradient(policy, rollout, make(entropy_coef=0.3, entropy_floor=mean - 1e-4), micro_batch)
    torch.testing.assert_close(above, without, atol=1e-6, rtol=1e-5)
    assert seen["loss/entropy_bonus"] == 0


def test_the_entropy_is_that_of_the_weights_that_sampled() -> None:
    policy, rollout = _policy()
    mean = _mean(rollout)
    with torch.no_grad():
        policy.network.weight.zero_()  # uniform: log 5 now
    assert mean < 1.5
    _, seen = _gradient(policy, rollout, Grpo(entropy_coef=0.3, entropy_floor=mean + 1e-4))
    assert seen["loss/entropy_bonus"] == 1


def test_the_mean_is_over_the_tokens_of_all_processes() -> None:
    """Here 9.6 nats over n tokens more: the mean of both lies above the own one."""
    policy, rollout = _policy()
    mean, count = _mean(rollout), int((rollout.blocks[0].call[ROWS] >= 0).sum())
    both = (mean * count + 9.6) / (count + 4)
    assert both > mean + 0.01
    for floor, is_on in ((both - 1e-4, 0), (both + 1e-4, 1)):
        loss = Reinforce(entropy_coef=0.3, entropy_floor=floor)
        assert _gradient(policy, rollout, loss, processes=_Two((9.6, 4.0)))[1]["loss/entropy_bonus"] == is_on


def test_a_loss_without_a_floor_reads_no_log_probs_for_it() -> None:
    policy, rollout = _policy()
    cast(Any, policy).recorded = None  # a call would fail
    _gradient(policy, rollout, Reinforce(entropy_coef=0.3))


def test_outputs_of_the_data_have_no_entropy_to_floor() -> None:
    plan = OfflinePlan(2, are_decisions=True)
    check_mean_entropy(plan, Dpo(entropy_coef=0.1), "dpo")
    check_mean_entropy(cast(Any, SimpleNamespace()), Dpo(entropy_coef=0.1, entropy_floor=0.5), "dpo")
    with pytest.raises(ConfigError, match="loss 'dpo' has an entropy_floor, and outputs that the data brings"):
        check_mean_entropy(plan, Dpo(entropy_coef=0.1, entropy_floor=0.5), "dpo")
