"""One iteration of learning on toys: minibatches of whole groups, old weights and averages."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from mmrl.advantages.grpo import Grpo as GroupAdvantage
from mmrl.core.config import AveragingSettings, OptimizerSettings, RolloutSettings, UpdateSettings
from mmrl.core.contracts import Advantage, Loss, LossBatch, LossTerms, OutputsByWeights
from mmrl.core.data import Paths, Rollout, Scores, WeightsName
from mmrl.core.keys import GroupKey
from mmrl.core.views import DecisionView
from mmrl.losses.grpo import Grpo
from mmrl.losses.nft import Nft
from mmrl.losses.reinforce import Reinforce
from mmrl.training.minibatches import minibatches
from mmrl.training.processes import Processes
from mmrl.training.rollouts import Collected
from mmrl.training.trainer import Trainer
from tests.parameters import in_one_test
from tests.toys import ToyTokens, toy_rollout


def parts_of(kept: list[int], iteration: int = 0, **updates: int) -> list[list[int]]:
    return minibatches(kept, UpdateSettings(**updates), 0, iteration)  # type: ignore[arg-type]


@in_one_test("num_groups", [4, 5, 6, 7, 9, 48])
def test_an_epoch_has_as_many_parts_as_asked_for_whose_sizes_differ_by_one_at_most(num_groups: int) -> None:
    """5 groups in 4 parts are 2, 1, 1, 1; filters leave any number of groups."""
    kept = [10 * n for n in range(num_groups)]
    parts = parts_of(kept, minibatches=4)
    assert len(parts) == 4
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sorted(draw for part in parts for draw in part) == kept


def test_fewer_groups_than_parts_make_a_step_each() -> None:
    assert sorted(parts_of([7, 3], minibatches=4)) == [[3], [7]]
    assert parts_of([], minibatches=4) == []


def test_every_epoch_sees_every_group_once_in_an_order_of_its_own() -> None:
    kept = list(range(12))
    parts = parts_of(kept, epochs=3, minibatches=2)
    epochs = [parts[n] + parts[n + 1] for n in (0, 2, 4)]
    assert all(sorted(epoch) == kept for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert parts == parts_of(kept, epochs=3, minibatches=2)
    assert parts != parts_of(kept, 1, epochs=3, minibatches=2)


@dataclass(frozen=True)
class SlowGrpo(Grpo):
    """GRPO against an average of the weights that is kept across iterations."""

    def old_decay(self, iteration: int) -> float:
        return 0.75


def learn(
    loss: Loss,
    *,
    advantage: Advantage | None = None,
    rate: float = 0.1,
    warmup: int = 0,
    moved: bool = False,
    **updates: Any,
) -> tuple[dict[str, float], list[Tensor], ToyTokens]:
    """One iteration of learning on a toy rollout: metrics, the weights before and after each step, the policy.

    `moved`: the weights are no more those that drew the rollout.
    """
    policy, rollout = toy_rollout(num_groups=4)
    for which in ("old", "averaged"):
        policy.weights.keep(which)
    weights = policy.network.weight
    if moved:
        weights.data += torch.linspace(-0.4, 0.5, weights.numel()).view_as(weights)
    optimizer = torch.optim.SGD(policy.network.parameters(), lr=rate)
    seen = [weights.detach().clone()]
    optimizer.register_step_post_hook(lambda *_: seen.append(weights.detach().clone()))
    count, rows = rollout.num_samples, torch.arange(rollout.num_samples)
    reward = torch.linspace(0, 1, count).square()[:, None]
    scores = Scores(reward, ("r",), (1.0,), torch.ones(count, dtype=torch.bool), rollout.group, rows, rows * 0)
    settings = {
        "seed": 0,
        "iterations": 10,
        "optimizer": OptimizerSettings(learning_rate=rate, warmup=warmup, max_grad_norm=None),
        "updates": UpdateSettings(**updates),
        "averaging": AveragingSettings(decay=0.5),
        "rollout": RolloutSettings(),
    }
    parts: dict[str, Any] = dict.fromkeys(("folder", "evaluator", "tracking"))
    parts["collector"] = SimpleNamespace(scorer=SimpleNamespace(score_in_graph=print))  # nothing is scored
    trainer = Trainer(
        config=cast(Any, SimpleNamespace(**settings)),
        processes=Processes(),
        policy=policy,
        advantage=advantage or GroupAdvantage(),
        loss=loss,
        optimizer=optimizer,
        stateful={},
        **parts,
    )
    collected = Collected(rollout, scores, rows, [0, 1, 2, 3], rollout.blocks[0].paths, 0, {})
    return trainer._learn(collected, 0), seen, policy


def test_old_weights_draw_the_rollouts_only_where_the_loss_keeps_them() -> None:
    for loss, expected in ((Grpo(), "trained"), (Reinforce(), "trained"), (Nft(), "old"), (SlowGrpo(), "old")):
        assert Trainer.sampling_weights.fget(SimpleNamespace(loss=loss)) == expected  # type: ignore[attr-defined]


def test_a_single_step_is_exactly_on_policy() -> None:
    metrics, seen, _ = learn(Grpo(), moved=True)
    assert len(seen) == 2 and metrics["loss/log_ratio_size"] == 0


def test_later_steps_are_measured_against_the_weights_that_drew_the_rollout() -> None:
    """With a rate of nothing the log-ratio is that of the recorded log-probs, or 0 once they are computed again."""
    loss = Grpo(clip_low=0.5, clip_high=5.0)
    assert learn(loss, minibatches=2)[0]["loss/log_ratio_size"] > 1e-3
    assert learn(loss, rate=1e-9, minibatches=2)[0]["loss/log_ratio_size"] == pytest.approx(0, abs=1e-6)
    assert learn(loss, rate=1e-9, minibatches=2, moved=True)[0]["loss/log_ratio_size"] > 0.05
    again = learn(loss, rate=1e-9, minibatches=2, moved=True, old="recomputed")
    assert again[0]["loss/log_ratio_size"] == pytest.approx(0, abs=1e-6)


def test_averaged_weights_follow_each_step_and_old_ones_once_after_all() -> None:
    _, seen, policy = learn(SlowGrpo(clip_low=0.5, clip_high=5.0), epochs=2, minibatches=2)
    assert len(seen) == 5
    averaged = seen[0]
    for weights in seen[1:]:
        averaged = 0.5 * averaged + 0.5 * weights
    torch.testing.assert_close(policy.weights.tensors("averaged")["network.weight"], averaged)
    expected = 0.75 * seen[0] + 0.25 * seen[-1]
    torch.testing.assert_close(policy.weights.tensors("old")["network.weight"], expected)
    assert (seen[-1] - seen[0]).abs().max() > 1e-3


def test_the_step_is_taken_at_the_scheduled_rate() -> None:
    """The first of four warm-up iterations: a quarter of the step."""
    (_, whole, _), (_, quarter, _) = learn(Grpo()), learn(Grpo(), warmup=4)
    torch.testing.assert_close(quarter[1] - quarter[0], 0.25 * (whole[1] - whole[0]))


def test_every_step_has_views_of_its_own() -> None:
    keys: list[GroupKey] = []

    class Noting(Grpo):
        def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[DecisionView]:
            keys.append(key)
            return super().views(rollout, rows, key)

    learn(Noting(), epochs=2, minibatches=2)
    assert len(set(keys)) == 4


@dataclass(frozen=True)
class OnlyGood(GroupAdvantage):
    """Learns from samples that are better than their group alone, and of these from their first decision."""

    def update_mask(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        assert paths is not None
        return (self(scores) > 0)[:, None] & (torch.arange(paths.edge.shape[1]) == 0)


@dataclass(frozen=True)
class MaskedAdvantage(GroupAdvantage):
    """The same as numbers: 0 for all else, which then counts in the denominator."""

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        own = super().__call__(scores)
        return own if paths is None else own[:, None] * OnlyGood().update_mask(scores, paths)


def test_what_an_advantage_does_not_keep_counts_nowhere_and_costs_no_call() -> None:
    loss = Reinforce(normalise="decision")
    everything, kept, masked = learn(loss), learn(loss, advantage=OnlyGood()), learn(loss, advantage=MaskedAdvantage())
    _, rollout = toy_rollout(num_groups=4)
    drawn, count = rollout.num_samples, int((rollout.blocks[0].edge >= 0).sum())
    num_kept = kept[2].num_calls - drawn
    assert everything[2].num_calls == 2 * drawn and 0 < num_kept < drawn
    step, diluted = kept[1][1] - kept[1][0], masked[1][1] - masked[1][0]
    torch.testing.assert_close(step, diluted * count / num_kept)
    assert step.abs().max() > 1e-3


@dataclass(frozen=True)
class NearAverage(Reinforce):
    """Nothing but the distance of the log-probs to those of the averaged weights."""

    @property
    def needs(self) -> frozenset[WeightsName]:
        return frozenset({"averaged"})

    def measure(self, evaluations: OutputsByWeights) -> tuple[Tensor, ...]:
        return (evaluations.trained.log_ratio(evaluations.averaged),)

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        return LossTerms(measures[0], {"distance": measures[0].detach().abs()})


def test_a_loss_may_read_the_averaged_weights() -> None:
    """They begin as the trained ones and stay behind from the first step on; each view is evaluated under both."""
    assert learn(NearAverage())[0]["loss/distance"] == 0
    metrics, _, policy = learn(NearAverage(), epochs=2)
    assert metrics["loss/distance"] > 1e-3
    assert policy.num_calls == (1 + 2 * 2) * toy_rollout(num_groups=4)[1].num_samples  # the rollout is one pass
