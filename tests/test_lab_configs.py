"""Every config of an algorithm on a lab trains; a run of it that is stopped and resumed ends as if it had not been."""

from pathlib import Path

import pytest

from mmrl.commands.train import train
from mmrl.core.config import load_config, shipped_names
from mmrl.run_directory.start import new_run, resumed_run
from tests.tiny_runs import assert_same, numbers

LAB = [name for name in shipped_names() if name.startswith("lab/")]
SMALL = ("threads=1", "checkpoint.every=1", "evaluation=null", "optimizer.schedule=constant")


def test_every_kind_of_algorithm_has_its_configs() -> None:
    assert len(LAB) > 10


@pytest.mark.slow  # two short runs of every algorithm
@pytest.mark.parametrize("name", LAB)
def test_a_resumed_run_ends_as_one_that_was_not_stopped(name: str, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    groups = max(2, load_config(name).updates.minibatches)
    for folder, iterations in ((whole, 3), (parts, 1)):
        train(*new_run(name, [*SMALL, f"prompts_per_iteration={groups}", f"iterations={iterations}"], folder))
    train(resumed_run(parts, ["iterations=3"]), parts, resume=True)
    assert_same(numbers(parts), numbers(whole))


@pytest.mark.parametrize("name", LAB)
def test_a_config_has_the_budget_of_the_others(name: str) -> None:
    """What is compared trains on the same prompts, is evaluated alike, and is short enough to look at."""
    config = load_config(name)
    assert config.evaluation is not None and config.prompts.held_out is not None
    assert str(config.modality.get("model", "")).startswith("lab:") and config.threads == 1
