"""Decisions that a loss selects: the same ones however the work is cut, by the log-probs of sampling."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from mmrl.core.keys import GroupKey
from mmrl.losses.clip_cov import ClipCov
from mmrl.losses.disco import Disco
from mmrl.losses.kl_cov import KlCov
from mmrl.training.decision_selection import Entries, select_everywhere
from mmrl.training.processes import Processes
from mmrl.training.update import Updater
from tests.ratios import normal
from tests.toys import loss_batch, toy_rollout

ROWS = torch.tensor([0, 2, 3, 5])
LOSSES = [ClipCov(share=0.3, cov_low=0.0, cov_high=9.0), KlCov(share=0.4)]


def _gradient(loss: Any, micro_batch: int = 100, shift: float = 0.3) -> tuple[Tensor, float]:
    """Returns the gradient of a step on `ROWS` with weights that have moved, and the share of selected tokens."""
    policy, rollout = toy_rollout()
    with torch.no_grad():
        policy.network.weight += shift * torch.linspace(-1, 1, 20).view_as(policy.network.weight)
    weight = torch.zeros(rollout.num_samples, 1)
    weight[ROWS] = 1.0
    metrics = Updater(policy, loss, Processes(), micro_batch).accumulate(
        rollout, loss.views(rollout, ROWS, GroupKey(0, 0, 0)), loss_batch(rollout, weight=weight), "recorded"
    )
    assert metrics is not None
    share = float(metrics.totals["loss/selected_fraction"] / metrics.weight["loss/selected_fraction"])
    return torch.cat([p.grad.flatten() for p in policy.network.parameters() if p.grad is not None]), share


@pytest.mark.parametrize("loss", LOSSES, ids=["clip_cov", "kl_cov"])
def test_micro_batches_change_nothing(loss: Any) -> None:
    whole, share = _gradient(loss)
    count = int((toy_rollout()[1].blocks[0].call[ROWS] >= 0).sum())
    assert share == pytest.approx(int(loss.share * count) / count)
    for size in (1, 3):
        part, of_parts = _gradient(loss, size)
        torch.testing.assert_close(part, whole)
        assert of_parts == pytest.approx(share)


def test_the_selection_is_by_the_log_probs_of_sampling() -> None:
    """Weights that have moved far select the same tokens: here the tokens' terms without a gradient stay the same."""
    seen: list[Tensor] = []

    @dataclass(frozen=True)
    class Recording(KlCov):
        def select(self, log_prob: Tensor, *others: Any) -> Tensor:
            seen.append(log_prob)
            return super().select(log_prob, *others)

    _gradient(Recording(), shift=0.0)
    _gradient(Recording(), shift=2.0)
    assert torch.equal(seen[0], seen[1])
    _, rollout = toy_rollout()
    want = [
        float(rollout.trace.log_prob[row, k])
        for row in ROWS.tolist()
        for k, token in enumerate(rollout.trace.tokens[row].tolist())
        if token >= 0
    ]
    assert seen[0].tolist() == pytest.approx(want)


class _Two:
    """Process `number` of two with these entries."""

    def __init__(self, every: tuple[Entries, Entries], number: int) -> None:
        self.every, self.number = every, number

    def gather(self, own: list[Entries]) -> list[Entries]:
        assert torch.equal(own[0].group, self.every[self.number].group)
        return list(self.every)

    def count_before(self, count: int) -> int:
        return len(self.every[0].group) if self.number else 0


def _entries(groups: list[int]) -> Entries:
    """Returns three tokens of each group, whose numbers hang on the group alone."""
    log_prob = torch.cat([normal(10 + group, 3) for group in groups])
    advantages = torch.cat([normal(50 + group, 3) for group in groups])
    return Entries(log_prob, advantages, torch.ones_like(log_prob), torch.tensor(groups).repeat_interleave(3))


@pytest.mark.parametrize("loss", [ClipCov(share=0.3, cov_low=-0.5, cov_high=9.0), KlCov(share=0.3)])
def test_processes_change_nothing(loss: Any) -> None:
    alone = select_everywhere(loss, _entries([0, 1, 2, 3, 4]), Processes(), 0)
    assert 0 < alone.sum() < 15
    both = (_entries([3, 0]), _entries([1, 4, 2]))
    parts = [select_everywhere(loss, both[number], cast(Any, _Two(both, number)), 0) for number in (0, 1)]
    by_group = dict(zip([3, 0, 1, 4, 2], torch.cat(parts).split(3), strict=True))
    assert torch.equal(torch.cat([by_group[group] for group in range(5)]), alone)


def test_a_process_without_decisions_takes_part() -> None:
    nothing = Entries.join([])
    assert select_everywhere(KlCov(), nothing, Processes(), 0).tolist() == []
    both = (nothing, _entries([0, 1]))
    assert select_everywhere(KlCov(), nothing, cast(Any, _Two(both, 0)), 0).tolist() == []
    assert select_everywhere(KlCov(), both[1], cast(Any, _Two(both, 1)), 0).sum() == 1


def test_each_optimizer_step_has_a_random_selection_of_its_own() -> None:
    loss, entries = ClipCov(share=0.3, cov_low=-99.0, cov_high=99.0), _entries([0, 1, 2, 3, 4])
    found = [select_everywhere(loss, entries, Processes(), step).tolist() for step in (0, 0, 1, 2, 3, 4)]
    assert found[0] == found[1] and any(found[0] != other for other in found[2:])


class _OneByOne(Processes):
    """Knows nothing of others, and refuses a sum while another process may have failed."""

    depth = 0

    @contextmanager
    def lockstep(self) -> Iterator[None]:
        self.depth += 1
        with super().lockstep():
            yield
        self.depth -= 1

    def sum(self, values: Tensor) -> Tensor:
        assert self.depth == 0, "the processes that failed wait elsewhere"
        return super().sum(values)


@pytest.mark.parametrize("loss", [Disco(), *LOSSES], ids=["disco", "clip_cov", "kl_cov"])
def test_no_sum_waits_for_a_process_that_failed(loss: Any) -> None:
    policy, rollout = toy_rollout()
    updater = Updater(policy, loss, _OneByOne(), 2)
    views = loss.views(rollout, ROWS, GroupKey(0, 0, 0))
    assert updater.accumulate(rollout, views, loss_batch(rollout), "recorded") is not None and updater.num_calls > 0
