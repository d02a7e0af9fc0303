"""A run that was stopped or killed goes on from its checkpoint as if there had been no stop."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.commands.summary import summary_of
from mmrl.core.config import EvaluationSettings
from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.training import checkpoint
from mmrl.training.trainer import Trainer
from tests.parameters import in_one_test
from tests.toy_runs import CountZeros, Toy, toy, trained


class StopAt:
    """Asks a trainer for a stop while the rewards of an iteration are at work."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration
        self.trainer: Trainer

    def __call__(self, batch: RewardBatch) -> None:
        if batch.iteration == self.iteration:
            self.trainer.stop_requested = True


@pytest.mark.slow
def test_a_stop_finishes_the_iteration_and_saves_it_and_the_run_goes_on_as_if_there_had_been_none(
    tmp_path: Path,
) -> None:
    whole = toy(tmp_path / "whole", iterations=6, optimizer={"learning_rate": 0.3})
    assert whole.trainer.train()
    stop = StopAt(2)
    run = toy(tmp_path / "run", iterations=6, optimizer={"learning_rate": 0.3}, reward=CountZeros(stop))
    stop.trainer = run.trainer
    assert not run.trainer.train()
    assert run.trainer.progress.iteration == 3
    assert run.saved == [3]
    assert run.evaluated == [0]  # a stop is no end
    ended = summary_of(run.trainer, is_complete=False)["held_out"]
    assert ended["before"] is not None and ended["after"] is None and ended["after_iteration"] is None
    again = toy(tmp_path / "run", iterations=6, optimizer={"learning_rate": 0.3})
    again.trainer.restore(checkpoint.load(tmp_path / "run" / "checkpoints" / "000003"))
    assert again.trainer.train()
    torch.testing.assert_close(trained(again), trained(whole), rtol=0, atol=0)
    assert again.evaluated == whole.evaluated == [0, 6]
    ended = summary_of(again.trainer, is_complete=True)["held_out"]
    assert ended["after"] == again.trainer.progress.latest and ended["after_iteration"] == 6


def test_a_stop_before_the_first_iteration_saves_nothing(tmp_path: Path) -> None:
    run = toy(tmp_path)
    run.trainer.stop_requested = True
    assert not run.trainer.train()
    assert run.trainer.progress.iteration == 0 and run.saved == []


def test_a_run_whose_time_is_up_ends_as_if_done(tmp_path: Path) -> None:
    run = toy(tmp_path, iterations=1000, max_seconds=1e-6)
    assert run.trainer.train()
    assert run.trainer.progress.iteration == 1
    assert run.saved == [1, 1]  # before the last evaluation and after it
    assert run.evaluated == [0, 1]
    again = toy(tmp_path, iterations=1000, max_seconds=1e-6)
    again.trainer.restore(checkpoint.load(tmp_path / "checkpoints" / "000001"))
    assert again.trainer.train()
    assert again.saved == [] and again.evaluated == [0, 1]


def scored(run: Toy, scores: Sequence[float]) -> None:
    """Lets a run's evaluations have these scores, that before training first, then one for each iteration."""
    evaluator: Any = run.trainer.evaluator

    def evaluated(is_stopping: Any, counting: Any) -> Any:
        result = evaluator(is_stopping, counting=counting)
        return replace(result, score=scores[run.trainer.progress.iteration])

    run.trainer.evaluator = evaluated  # type: ignore[assignment]


@in_one_test(
    ("scores", "stop_after", "ended_at"),
    [
        ([9, 1, 2, 2, 3, 3, 1, 9, 9], 2, 6),  # the score before training is not one to beat
        ([0, 1, 2, 2, 3, 3, 1, 9, 9], 1, 3),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], 1, 8),
        ([0, 1, 0, 2, 0, 3, 0, 4, 0], 2, 8),
    ],
)
def test_a_run_ends_where_its_score_has_not_risen(
    scores: list[float], stop_after: int, ended_at: int, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "iterations": 8,
        "checkpoint": {"every": 0},
        "evaluation": {"sampler": {"name": "unused"}, "every": 1, "stop_after": stop_after},
    }
    run = toy(tmp_path, **changes)
    scored(run, scores)
    assert run.trainer.train()
    assert run.trainer.progress.iteration == run.saved[-1] == ended_at
    assert run.trainer.progress.best == max(scores[1 : ended_at + 1])
    again = toy(tmp_path, **changes)
    again.trainer.restore(checkpoint.load(tmp_path / "checkpoints" / f"{ended_at:06d}"))
    assert again.trainer.train()
    assert again.saved == [] and again.trainer.progress.iteration == ended_at
    more = toy(tmp_path, **changes | {"evaluation": changes["evaluation"] | {"stop_after": 3}})
    more.trainer.restore(checkpoint.load(tmp_path / "checkpoints" / f"{ended_at:06d}"))
    scored(more, scores)
    assert more.trainer.train()
    assert more.trainer.progress.iteration == 8 and more.trainer.progress.best == max(scores[1:])
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "metrics.jsonl").unlink()


def with_kl(run: Toy, values: Sequence[float | None]) -> None:
    """Lets a run's iterations have these KLs to the reference, that of iteration 1 first."""
    learn: Any = run.trainer._learn

    def learned(collected: Any, iteration: int) -> dict[str, float]:
        kl = values[iteration]
        return {**learn(collected, iteration), **({} if kl is None else {"loss/kl": kl})}

    run.trainer._learn = learned  # type: ignore[method-assign]


@in_one_test(
    ("values", "ended_at"),
    [
        ([0.1, 0.6, 0.7, 0.8, 0.9, 0.9, 0.9, 0.9], 4),  # three in a row
        ([0.6, 0.7, 0.1, 0.6, 0.7, 0.5, 0.6, 0.7], 8),  # 0.5 is not above 0.5
        (
            [0.6, 0.7, float("nan"), None, 0.6, 0.1, 0.1, 0.1],
            5,
        ),  # what is no number, or was not measured, counts as nothing
    ],
)
def test_a_run_ends_where_its_kl_stays_above_what_it_may_be(
    values: list[float | None], ended_at: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evaluation = {"sampler": {"name": "unused"}, "every": 4, "max_kl": 0.5}
    changes: dict[str, Any] = {"iterations": 8, "checkpoint": {"every": 1, "keep": 9}, "evaluation": evaluation}
    run = toy(tmp_path, **changes)
    with_kl(run, values)
    assert run.trainer.train()
    assert run.trainer.progress.iteration == run.saved[-1] == run.evaluated[-1] == ended_at
    assert ("evaluation.max_kl" in caplog.text) == (ended_at < 8)
    again = toy(tmp_path, **changes)  # from one before: what was measured is in the checkpoint
    again.trainer.restore(checkpoint.load(tmp_path / "checkpoints" / f"{ended_at - 1:06d}"))
    with_kl(again, values)
    assert again.trainer.train() and again.trainer.progress.iteration == ended_at
    done = toy(tmp_path, **changes)
    done.trainer.restore(checkpoint.load(tmp_path / "checkpoints" / f"{ended_at:06d}"))
    assert done.trainer.train() and done.saved == []
    more = toy(tmp_path, **changes | {"evaluation": evaluation | {"max_kl": 1.0}})  # a resumed run may go farther
    more.trainer.restore(checkpoint.load(tmp_path / "checkpoints" / f"{ended_at:06d}"))
    with_kl(more, values)
    assert more.trainer.train() and more.trainer.progress.iteration == 8
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "metrics.jsonl").unlink()
    caplog.clear()


def test_an_end_by_the_score_needs_evaluations() -> None:
    with pytest.raises(ValueError, match=r"stop_after[\s\S]*`every` must be at least 1"):
        EvaluationSettings.model_validate({"sampler": {"name": "ode"}, "stop_after": 2})


@pytest.mark.slow
def test_what_is_due_is_saved_before_it_is_evaluated(tmp_path: Path) -> None:
    """A kill within the evaluation leaves the iteration, and a resume makes the evaluation, the same as ever."""
    settings: dict[str, Any] = {
        "iterations": 6,
        "optimizer": {"learning_rate": 0.3},
        "checkpoint": {"every": 1, "keep": 9},
        "evaluation": {"sampler": {"name": "unused"}, "every": 2},
    }
    whole = toy(tmp_path / "whole", **settings)
    assert whole.trainer.train()
    run = toy(tmp_path / "run", **settings)
    evaluator: Any = run.trainer.evaluator

    def killed(is_stopping: Any, counting: Any) -> Any:
        if run.trainer.progress.iteration == 4:
            raise KeyboardInterrupt
        return evaluator(is_stopping, counting=counting)

    run.trainer.evaluator = killed  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        run.trainer.train()
    saved = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert saved is not None and saved.name == "000004"
    again = toy(tmp_path / "run", **settings)
    again.trainer.restore(checkpoint.load(saved))
    assert again.trainer.train()
    torch.testing.assert_close(trained(again), trained(whole), rtol=0, atol=0)
    assert again.evaluated == whole.evaluated == [0, 2, 4, 6]
    assert replace(again.trainer.progress, train_seconds=0.0) == replace(whole.trainer.progress, train_seconds=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("stopped_at", "total"), [(2, 6), (6, 6)])
def test_a_stop_leaves_an_evaluation_between_chunks_and_it_is_made_on_resume(
    stopped_at: int, total: int, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "iterations": total,
        "optimizer": {"learning_rate": 0.3},
        "evaluation": {"sampler": {"name": "unused"}, "every": 2},
    }
    whole = toy(tmp_path / "whole", **settings)
    assert whole.trainer.train()
    run = toy(tmp_path / "run", **settings)
    evaluator: Any = run.trainer.evaluator
    chunks = 0

    def stopping(is_stopping: Any, counting: Any) -> Any:
        nonlocal chunks

        def is_requested() -> bool:
            nonlocal chunks
            run.trainer.stop_requested = run.trainer.progress.iteration == stopped_at and chunks > 0
            chunks += 1
            return bool(is_stopping())

        chunks = 0
        return replace(evaluator, prompts=evaluator.prompts * 3, chunk=1)(is_requested, counting=counting)

    run.trainer.evaluator = stopping  # type: ignore[assignment]
    assert not run.trainer.train()
    assert chunks == 2  # of three
    assert stopped_at not in run.evaluated and run.saved[-1] == stopped_at
    again = toy(tmp_path / "run", **settings)
    again.trainer.restore(checkpoint.load(tmp_path / "run" / "checkpoints" / f"{stopped_at:06d}"))
    assert again.trainer.train()
    torch.testing.assert_close(trained(again), trained(whole), rtol=0, atol=0)
    assert again.evaluated == whole.evaluated == [0, 2, 4, 6]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    run = toy(tmp_path, iterations=1)
    run.trainer.train()
    saved = checkpoint.load(tmp_path / "checkpoints" / "000001")
    other = {name: tensor[:-1] for name, tensor in saved.tensors["trained"].items()}
    wrong = checkpoint.Checkpoint(1, {**saved.tensors, "trained": other}, saved.state)
    with pytest.raises(ConfigError, match="the checkpoint is of another model"):
        run.trainer.restore(wrong)


@pytest.mark.parametrize("warm_start", [None, "another run"])
def test_the_reference_of_a_warm_start_is_in_the_checkpoint(tmp_path: Path, warm_start: str | None) -> None:
    run = toy(tmp_path, iterations=1, optimizer={"learning_rate": 0.3}, warm_start=warm_start)
    run.trainer.policy.weights.keep("reference")
    run.trainer.train()
    saved = checkpoint.load(tmp_path / "checkpoints" / "000001")
    assert ("reference" in saved.tensors) == (warm_start is not None)
    if warm_start is not None:
        again = toy(tmp_path, warm_start=warm_start)
        again.trainer.policy.weights.keep("reference")
        again.trainer.policy.weights.tensors("reference")["network.bias"].fill_(7.0)  # the other run went on
        again.trainer.restore(saved)
        assert again.trainer.policy.weights.tensors("reference")["network.bias"].tolist() == [0.0] * 5
