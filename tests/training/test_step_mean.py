"""The mean of a step under the present weights: the same however the work is cut."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from mmrl.core.keys import GroupKey
from mmrl.losses.disco import Disco
from mmrl.training.processes import Processes
from mmrl.training.update import Updater
from tests.toys import ToyTokens, loss_batch, toy_rollout


class _Two(Processes):
    """Two processes: this one, and another with this denominator and this part of the mean."""

    def __init__(self, other: Sequence[float]) -> None:
        super().__init__()
        self.other = list(other)

    def sum(self, values: Tensor) -> Tensor:
        return values + self.other.pop(0)


def _policy() -> ToyTokens:
    policy, _ = toy_rollout()
    with torch.no_grad():
        policy.network.weight += 0.5 * torch.linspace(-1, 1, 20).view_as(policy.network.weight)
    return policy


def _step(
    loss: Disco, rows: Tensor, micro_batch: int = 100, processes: Processes | None = None
) -> tuple[Tensor, dict[str, float]]:
    (_, rollout), policy = toy_rollout(), _policy()
    weight = torch.zeros(rollout.num_samples, 1)
    weight[rows] = 1.0
    scores = (torch.arange(rollout.num_samples) % 2).float()
    metrics = Updater(policy, loss, processes or Processes(), micro_batch).accumulate(
        rollout,
        loss.views(rollout, rows, GroupKey(0, 0, 0)),
        loss_batch(rollout, weight=weight, scores=scores),
        "recorded",
    )
    assert metrics is not None
    means = {name: float(total / metrics.weight[name]) for name, total in metrics.totals.items()}
    return torch.cat([p.grad.flatten().clone() for p in policy.network.parameters() if p.grad is not None]), means


def _kl(rows: Tensor) -> float:
    """Returns the mean of the old less the present log-prob over the tokens of these samples, in a slow loop."""
    _, rollout = toy_rollout()
    present = _policy()._log_probs().detach()
    gaps = [
        float(rollout.trace.log_prob[row, k] - present[k, token])
        for row in rows.tolist()
        for k, token in enumerate(rollout.trace.tokens[row].tolist())
        if token >= 0
    ]
    return sum(gaps) / len(gaps)


ALL = torch.arange(12)


def test_the_constraint_is_on_the_kl_of_the_whole_step() -> None:
    kl = _kl(ALL)
    assert kl > 0.02
    for shift, is_on in ((-1e-4, 1), (1e-4, 0)):
        _, seen = _step(Disco(kl_bound=kl + shift, normalise="decision"), ALL, 3)
        assert seen["loss/constraint"] == is_on
        assert seen["loss/kl_old"] == pytest.approx(kl, abs=1e-6)


def test_micro_batches_change_nothing() -> None:
    loss = Disco(kl_bound=0.0, hinge_weight=5.0, normalise="decision")
    whole, seen = _step(loss, ALL)
    assert whole.abs().max() > 1e-3
    for size in (1, 3):
        parts, in_parts = _step(loss, ALL, size)
        torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-5)
        assert in_parts == pytest.approx(seen, abs=1e-5)


def test_the_kl_is_that_of_all_processes() -> None:
    """The other process has 30 tokens with 6 nats more: its part of the mean is 6 by the number of all tokens."""
    rows = torch.arange(4)
    count = int((toy_rollout()[1].blocks[0].call[rows] >= 0).sum())
    both = (_kl(rows) * count + 6.0) / (count + 30)
    for shift, is_on in ((-1e-4, 1), (1e-4, 0)):
        loss = Disco(kl_bound=both + shift, normalise="decision")
        _, seen = _step(loss, rows, processes=_Two([30.0, 6.0 / (count + 30)]))
        assert seen["loss/constraint"] == is_on
