"""What is said at the end of a training run."""

from pathlib import Path
from typing import Any

import pytest

from mmrl.commands.summary import Outcome


def outcome(folder: Path, **held_out: Any) -> Outcome:
    """A run of 9 iterations, evaluated at its end."""
    scores = {"name": "shapes", "before": 0.25, "after": 0.5, "best": 0.5, "best_iteration": 9} | held_out
    summary = {"held_out": scores, "iterations": 9, "idle_iterations": 0, "train_seconds": 3.2}
    return Outcome(folder, summary, is_complete=True)


def test_a_better_iteration_than_the_last_is_named_with_the_command_that_exports_it(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "000006").mkdir(parents=True)
    first, last = str(outcome(tmp_path, best=0.625, best_iteration=6)).splitlines()
    assert first.startswith("held-out shapes 0.250 -> 0.500 after 9 iterations")
    better = "iteration 6 was better than the last, 0.625 on the held-out prompts: "
    assert last == f"{better}mmrl export {tmp_path} --checkpoint best"


def test_a_better_iteration_that_was_not_saved_is_reported_too(tmp_path: Path) -> None:
    line = str(outcome(tmp_path, best=0.625, best_iteration=6))
    assert line.endswith("0.625 on the held-out prompts; it was not saved (checkpoint.every is 0)")


def test_the_best_iteration_is_not_named_where_the_model_before_was_better(tmp_path: Path) -> None:
    line = str(outcome(tmp_path, before=0.7, best=0.625, best_iteration=6)).splitlines()[-1]
    assert line == f"no iteration was better than the model before training: mmrl doctor {tmp_path}"


@pytest.mark.parametrize("held_out", [{}, {"best": None, "best_iteration": None}, {"before": None, "after": None}])
def test_nothing_is_said_where_nothing_was_better(held_out: dict[str, Any], tmp_path: Path) -> None:
    assert len(str(outcome(tmp_path, **held_out)).splitlines()) == 1
