"""The loop: minibatches, what an iteration does and logs, when it evaluates and saves."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.training import checkpoint
from mmrl.training.minibatches import minibatches
from mmrl.training.update import select_groups
from tests.parameters import in_one_test
from tests.toy_runs import CountZeros, toy, trained


def some_batch() -> LossBatch:
    """Six samples of the groups 4, 4, 7, 7, 9, 9; the fourth could not be judged."""
    weight = torch.tensor([1.0, 1, 1, 0, 1, 1])[:, None]
    group = torch.tensor([4, 4, 7, 7, 9, 9])
    return LossBatch(torch.arange(6.0)[:, None], weight, group, torch.arange(6.0))


@in_one_test(
    "draws, rows, weight",
    [
        ([4], [0, 1], [1, 1, 0, 0, 0, 0]),
        ([7, 9], [2, 4, 5], [0, 0, 1, 0, 1, 1]),
        ([5], [], [0, 0, 0, 0, 0, 0]),
        ([9, 4, 7], [0, 1, 2, 4, 5], [1, 1, 1, 0, 1, 1]),
    ],
)
def test_only_the_judged_samples_of_the_chosen_groups_take_part(
    draws: list[int], rows: list[int], weight: list[float]
) -> None:
    chosen, batch = select_groups(some_batch(), draws)
    assert chosen.tolist() == rows
    assert batch is not None
    assert batch.weight[:, 0].tolist() == weight
    assert torch.equal(batch.advantages, some_batch().advantages)


def test_a_process_that_drew_nothing_has_nothing_to_select() -> None:
    rows, batch = select_groups(None, [1, 2])
    assert batch is None and rows.tolist() == []


def test_every_epoch_goes_over_all_kept_groups_in_an_order_of_its_own(tmp_path: Path) -> None:
    trainer = toy(tmp_path, updates={"epochs": 3, "minibatches": 3}).trainer
    kept = [3, 5, 8, 13, 21, 34, 55]
    steps = minibatches(kept, trainer.config.updates, trainer.config.seed, 0)
    assert [len(step) for step in steps] == [3, 2, 2] * 3
    epochs = [[draw for step in steps[start : start + 3] for draw in step] for start in (0, 3, 6)]
    assert all(sorted(epoch) == kept for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert minibatches(kept, trainer.config.updates, trainer.config.seed, 0) == steps
    assert minibatches(kept, trainer.config.updates, trainer.config.seed, 1) != steps


def test_fewer_groups_than_minibatches_make_fewer_steps_and_none_makes_none(tmp_path: Path) -> None:
    config = toy(tmp_path, updates={"epochs": 2, "minibatches": 4}).trainer.config
    assert sorted(minibatches([6, 2], config.updates, config.seed, 0)[:2]) == [[2], [6]]
    assert len(minibatches([6, 2], config.updates, config.seed, 0)) == 4
    assert [len(step) for step in minibatches([1, 2, 3, 4, 5], config.updates, config.seed, 0)] == [
        2,
        1,
        1,
        1,
    ] * 2
    assert minibatches([], config.updates, config.seed, 0) == []


def test_training_raises_the_reward(tmp_path: Path) -> None:
    run = toy(tmp_path, iterations=60, optimizer={"learning_rate": 0.3, "max_grad_norm": None})
    assert run.trainer.train()
    rewards = [line["reward/mean"] for line in run.lines if "reward/mean" in line]
    assert len(rewards) == 60
    assert sum(rewards[-10:]) > 1.5 * sum(rewards[:10])
    assert run.trainer.progress.latest is not None and run.trainer.progress.before is not None
    assert run.trainer.progress.latest > 1.5 * run.trainer.progress.before


def test_an_iteration_logs_what_it_did(tmp_path: Path) -> None:
    run = toy(tmp_path, "bright", "dull", iterations=1, groups={"degenerate": "drop"}, updates={"minibatches": 2})
    run.trainer.train()
    line = run.lines[1]
    assert (line["groups/kept"], line["groups/missing"], line["groups/degenerate"]) == (2, 2, 0.5)
    assert (line["calls/rollout"], line["calls/update"]) == (4 * 6, 2 * 6)
    assert line["optimizer/steps"] == 2
    assert line["optimizer/learning_rate"] == 3e-4
    assert line["optimizer/grad_norm"] > 0
    assert run.trainer.progress.network_calls == 6 * 6


@pytest.mark.slow
@pytest.mark.parametrize("groups", ["keep", "drop", "refill"])
def test_groups_that_teach_nothing_leave_the_weights_alone(tmp_path: Path, groups: str) -> None:
    run = toy(tmp_path, "dull", groups={"degenerate": groups}, optimizer={"learning_rate": 1.0})
    before = trained(run)
    assert run.trainer.train()
    torch.testing.assert_close(trained(run), before, rtol=0, atol=0)
    lines = [line for line in run.lines if "groups/kept" in line]
    assert len(lines) == 4
    for line in lines:
        assert line["groups/degenerate"] == 1.0
        assert line["groups/missing"] == (0 if groups == "keep" else 4)
        assert line["optimizer/steps"] == (1 if groups == "keep" else 0)


@pytest.mark.slow
def test_it_is_evaluated_before_and_after_and_every_few_iterations(tmp_path: Path) -> None:
    run = toy(tmp_path, iterations=5, evaluation={"sampler": {"name": "unused"}, "every": 2})
    run.trainer.train()
    assert run.evaluated == [0, 2, 4, 5]


def test_without_an_evaluation_there_is_none(tmp_path: Path) -> None:
    run = toy(tmp_path, iterations=2, evaluation=None, checkpoint={"every": 1})
    assert run.trainer.train()
    assert run.evaluated == []
    assert run.saved == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("every, saved", [(0, [7]), (3, [3, 6, 7]), (7, [7])])
def test_it_saves_every_few_iterations_and_at_the_end(tmp_path: Path, every: int, saved: list[int]) -> None:
    run = toy(tmp_path, iterations=7, checkpoint={"every": every, "keep": 9}, evaluation=None)
    run.trainer.train()
    assert run.saved == saved == sorted(checkpoint.saved(tmp_path / "checkpoints"))


@pytest.mark.slow
def test_the_best_evaluation_is_saved_and_kept(tmp_path: Path) -> None:
    scores = {2: 1.0, 4: 3.0, 6: 2.0, 8: 0.5, 9: 2.5}
    run = toy(
        tmp_path,
        iterations=9,
        checkpoint={"every": 100, "keep": 1},
        evaluation={"sampler": {"name": "unused"}, "every": 2},
        reward=CountZeros(),
    )
    evaluator = run.trainer.evaluator
    assert evaluator is not None

    def scripted(is_stopping: Any, counting: Any) -> Any:
        return replace(evaluator(), score=scores.get(run.trainer.progress.iteration, 9.0))

    run.trainer.evaluator = scripted  # type: ignore[assignment]
    run.trainer.train()
    assert run.saved == [2, 4, 9, 9]  # before the last evaluation and after it
    assert sorted(checkpoint.saved(tmp_path / "checkpoints")) == [4, 9]
    assert (run.trainer.progress.best, run.trainer.progress.best_iteration) == (3.0, 4)


@pytest.mark.slow
def test_training_seconds_leave_evaluations_out(tmp_path: Path) -> None:
    run = toy(tmp_path, iterations=3, evaluation={"sampler": {"name": "unused"}, "every": 1})
    evaluator = run.trainer.evaluator
    assert evaluator is not None

    def slow(is_stopping: Any, counting: Any) -> Any:
        time.sleep(0.1)
        return evaluator()

    run.trainer.evaluator = slow  # type: ignore[assignment]
    started = time.perf_counter()
    run.trainer.train()
    iterations = sum(line.get("time/iteration", 0.0) for line in run.lines)
    assert iterations <= run.trainer.progress.train_seconds <= time.perf_counter() - started - 0.4


def test_averaged_weights_follow_every_step(tmp_path: Path) -> None:
    decay = 0.75
    run = toy(
        tmp_path,
        iterations=1,
        averaging={"decay": decay},
        updates={"minibatches": 2, "epochs": 2},
        optimizer={"learning_rate": 0.5},
    )
    expected = trained(run)
    step = run.trainer.processes.step

    def stepped(*given: Any, **also: Any) -> Tensor:
        norm = step(*given, **also)
        for name, tensor in trained(run).items():
            expected[name] = decay * expected[name] + (1 - decay) * tensor
        return norm

    run.trainer.processes.step = stepped  # type: ignore[method-assign]
    run.trainer.train()
    averaged = run.trainer.policy.weights.tensors("averaged")
    for name, tensor in expected.items():
        torch.testing.assert_close(averaged[name], tensor, rtol=1e-5, atol=1e-6)
        assert not torch.equal(tensor, trained(run)[name])
