"""Training that diverges ends with words, and what it saved before stays good."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.core.contracts import DivergedError, RunError
from mmrl.training import checkpoint
from mmrl.training.divergence import check_weights, norm_metrics, stuck_for
from mmrl.training.processes import Processes
from tests.parameters import in_one_test
from tests.toy_runs import toy


@in_one_test("value", [math.nan, math.inf, -math.inf, 1e30])
def test_weights_that_no_network_can_use_are_refused(value: float) -> None:
    with pytest.raises(DivergedError, match="the norm of the trained weights is"):
        check_weights([torch.ones(3), torch.tensor([1.0, value])])


def test_large_weights_are_weights() -> None:
    check_weights([torch.full((4,), 1e15), torch.zeros(0)])


@pytest.mark.parametrize("gradient", [math.nan, math.inf])
def test_no_step_is_made_along_a_gradient_that_is_not_finite(gradient: float) -> None:
    engine, parameter, other = Processes(), nn.Parameter(torch.tensor([1.0])), nn.Parameter(torch.tensor([2.0]))
    optimizer = torch.optim.AdamW([parameter, other], lr=0.1, weight_decay=0.5)
    parameter.grad, other.grad = torch.tensor([gradient]), torch.tensor([1.0])
    assert not engine.step(optimizer, [parameter, other], 1.0).isfinite()
    assert (parameter.item(), other.item()) == (1.0, 2.0)
    assert parameter.grad is None
    assert not optimizer.state


def test_the_mean_norm_is_that_of_the_gradients_that_a_step_was_made_along() -> None:
    norms = [torch.tensor(value) for value in (1.0, math.nan, 3.0, math.inf)]
    assert norm_metrics(norms) == {"optimizer/grad_norm": 2.0, "optimizer/skipped": 2.0}
    assert norm_metrics(norms[1:2]) == {"optimizer/skipped": 1.0} and norm_metrics([]) == {}


def test_iterations_without_a_finite_gradient_are_counted_in_a_row() -> None:
    good, bad = torch.tensor(1.0), torch.tensor(math.nan)
    assert stuck_for(1, [bad, bad], may_scale=False) == 2
    assert stuck_for(1, [bad, good], may_scale=False) == 0
    assert stuck_for(1, [], may_scale=False) == 0
    assert stuck_for(1, [bad], may_scale=True) == 0


@pytest.mark.parametrize("total", [1, 4])
def test_weights_that_left_all_bounds_are_never_saved(total: int, tmp_path: Path) -> None:
    run = toy(
        tmp_path,
        iterations=total,
        optimizer={"learning_rate": 1e30},
        checkpoint={"every": 1, "keep": 2},
        evaluation=None,
    )
    with pytest.raises(RunError) as raised:
        run.trainer.train()
    assert "the weights diverged at iteration 1: the norm of the trained weights is" in str(raised.value)
    assert "lower optimizer.learning_rate (it was 1e+30); no checkpoint was saved before" in str(raised.value)
    assert checkpoint.saved(tmp_path / "checkpoints") == {}


def breaking(run: Any, first: int) -> None:
    """Gradients are NaN from the iteration `first` (counted from 1) on."""
    engine = run.trainer.processes
    summed = engine.sum_gradients

    def broken(parameters: list[nn.Parameter]) -> None:
        summed(parameters)
        if run.trainer.progress.iteration + 1 >= first and parameters[0].grad is not None:
            parameters[0].grad.fill_(math.nan)

    engine.sum_gradients = broken


@pytest.mark.slow
def test_a_run_without_finite_gradients_ends_and_names_the_last_good_checkpoint(tmp_path: Path) -> None:
    run = toy(tmp_path, iterations=9, checkpoint={"every": 1, "keep": 9}, optimizer={"learning_rate": 0.1})
    breaking(run, 4)
    with pytest.raises(RunError) as raised:
        run.trainer.train()
    assert "at iteration 6: no gradient was finite in 3 iterations in a row" in str(raised.value)
    assert str(raised.value).endswith(f"last good checkpoint: {tmp_path / 'checkpoints' / '000002'}")
    trained = [line for line in run.lines if "optimizer/skipped" in line]
    assert [line["optimizer/skipped"] for line in trained] == [0, 0, 0, 1, 1, 1]
    assert [line.get("optimizer/grad_norm") is None for line in trained] == [False] * 3 + [True] * 3


@pytest.mark.slow
def test_a_network_that_breaks_while_it_draws_is_said_to_have_diverged(tmp_path: Path) -> None:
    run = toy(tmp_path, iterations=4, checkpoint={"every": 1, "keep": 9}, evaluation=None)
    rollout = run.trainer.policy.rollout

    def broken(*given: Any) -> Any:
        if run.trainer.progress.iteration == 3:
            raise DivergedError("no token can be drawn")
        return rollout(*given)

    run.trainer.policy.rollout = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(RunError, match=r"at iteration 3: no token can be drawn; .*checkpoints/000002"):
        run.trainer.train()


def test_a_model_that_is_broken_from_the_start_has_not_diverged(tmp_path: Path) -> None:
    run = toy(tmp_path)

    def broken(*given: Any) -> Tensor:
        raise DivergedError("no token can be drawn")

    run.trainer.policy.rollout = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(DivergedError, match=r"^no token can be drawn$"):
        run.trainer.train()
