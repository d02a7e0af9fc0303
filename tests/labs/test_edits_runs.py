"""Runs on the edits lab, whose model is driven by its own pipeline: calls of trees, two processes, a stopped run."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.commands.train import train
from mmrl.run_directory.start import new_run
from tests import process_runs
from tests.process_runs import assert_same_run, ended_well, final_tensors, metrics, mmrl, movement, write_inputs

pytestmark = pytest.mark.slow  # each loads the pipeline and finds out how to drive it: about three seconds

GRPO = {"name": "grpo", "clip_low": 0.01, "clip_high": 0.01}
SHORT: dict[str, Any] = {
    "iterations": 2,
    "prompts_per_iteration": 2,
    "prompts": {"train": "lab:edits/train"},
    "modality": {
        "name": "diffusers_pipeline",
        "model": "lab:edits",
        "height": 32,
        "width": 32,
        "condition_images": 1,
        "arguments": {"max_area": 1024, "_auto_resize": False, "max_sequence_length": 5},
        "network_batch": 5,
    },
    "rewards": [{"name": "edits"}],
    "optimizer": {"learning_rate": 1e-3, "epsilon": 1e-5},  # else rounding decides where gradients are tiny
    "averaging": None,
    "evaluation": None,
    "checkpoint": {"every": 1, "keep": 5},
}


@pytest.mark.parametrize(
    ("sampler", "rollout", "update"),
    [
        # two steps and the first half of the random one are the group's, the last step is each sample's: 3 + 4; the
        # four decisions begin at one state
        pytest.param(
            "{name: flow_sde, num_steps: 4, share_noise: true, window: {mode: range, first: 2, last: 3}}",
            *(2 * 7, 2 * 1),
            id="shared prefix",
        ),
        # nothing is shared: four steps of four samples, of which two are decisions
        pytest.param(
            "{name: flow_sde, num_steps: 4, window: {mode: range, first: 1, last: 3}}", *(2 * 16, 2 * 8), id="window"
        ),
        # one root, two branches, four leaves: 1 + 2 + 4 + 4, the first three of which are decisions
        pytest.param(
            "{name: branch_grpo, num_steps: 4, noise_level: 0.5, splits: [0, 1]}", *(2 * 11, 2 * 7), id="branch_grpo"
        ),
    ],
)
def test_states_that_samples_share_are_called_once(sampler: str, rollout: int, update: int, tmp_path: Path) -> None:
    small = ["iterations=1", "prompts_per_iteration=2", "group_size=4", "evaluation=null", "updates.epochs=1"]
    loss = ["loss={name: grpo, clip_low: 0.01, clip_high: 0.01}", f"sampler={sampler}"]
    train(*new_run("quickstart_edit", [*small, *loss], tmp_path / "run"))
    (line,) = metrics(tmp_path / "run")
    assert (line["calls/rollout"], line["calls/update"]) == (rollout, update)


def test_two_processes_make_the_run_of_one(tmp_path: Path) -> None:
    write_inputs(tmp_path, SHORT | {"loss": GRPO})
    one, two = process_runs.train(tmp_path, "one", 1), process_runs.train(tmp_path, "two", 2)
    assert_same_run(one, two, 2)
    assert movement(one, 1, 2) > 1e-4


def test_a_run_of_the_quickstart_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path) -> None:
    small = ["prompts_per_iteration=2", "group_size=4", "checkpoint.every=1", "evaluation=null"]
    ended_well(mmrl(tmp_path, ["train", "quickstart_edit", "--out", "straight", "iterations=2", *small], 1))
    ended_well(mmrl(tmp_path, ["train", "quickstart_edit", "--out", "again", "iterations=1", *small], 1))
    ended_well(mmrl(tmp_path, ["train", "--resume", "again", "iterations=2"], 1))
    expected, got = final_tensors(tmp_path / "straight", 2), final_tensors(tmp_path / "again", 2)
    assert expected.keys() == got.keys()
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "again")
