"""A model of a family that is not listed makes the same run resumed, on two processes, and with sharded weights."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.process_runs import assert_same_run, ended_well, final_tensors, metrics, mmrl, movement, train
from tests.training.test_processes_texts import FULL, answers_of, grpo, write_questions
from tests.vision_twins import twin as unlisted


@pytest.mark.slow  # three runs
def test_an_unlisted_family_trains_as_the_listed_ones_do(tmp_path: Path) -> None:
    changes = {
        "modality": FULL | {"model": str(unlisted("llava_next"))},
        "loss": grpo("decision"),
        "iterations": 2,
        "checkpoint": {"every": 1, "keep": 5},
    }
    write_questions(tmp_path, changes)
    one = train(tmp_path, "one", 1)
    drawn_by_one = answers_of(tmp_path)
    assert movement(one, 1, 2) > 1e-4  # ten times the tolerance
    two = train(tmp_path, "two", 2, "sharding=full")
    assert answers_of(tmp_path) == drawn_by_one
    assert_same_run(one, two, iteration=2)

    broken = tmp_path / "broken"  # as it stands where the second iteration was never saved
    shutil.copytree(one, broken)
    shutil.rmtree(broken / "checkpoints" / "000002")
    (broken / "summary.json").unlink()
    ended_well(mmrl(tmp_path, ["train", "--resume", "broken"], 1))
    expected, found = final_tensors(one, 2), final_tensors(broken, 2)
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert metrics(broken) == metrics(one)
