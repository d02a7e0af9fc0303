"""A model of a family that is not listed makes the same run resumed, on two processes, and with sharded weights."""

from pathlib import Path

import pytest
import torch

from tests.process_runs import assert_same_run, ended_well, final_tensors, mmrl, movement, train
from tests.training.test_processes_texts import FULL, answers_of, grpo, write_questions
from tests.vision_twins import twin as unlisted


@pytest.mark.slow  # four runs
def test_an_unlisted_family_trains_as_the_listed_ones_do(tmp_path: Path) -> None:
    changes = {"modality": FULL | {"model": str(unlisted("ovis2"))}, "loss": grpo("decision")}
    write_questions(tmp_path, changes)
    one = train(tmp_path, "one", 1)
    drawn_by_one = answers_of(tmp_path)
    assert movement(one, 2, 3) > 1e-4  # ten times the tolerance
    two = train(tmp_path, "two", 2, "sharding=full")
    assert answers_of(tmp_path) == drawn_by_one
    assert_same_run(one, two)
    train(tmp_path, "broken", 1, "iterations=2")
    ended_well(mmrl(tmp_path, ["train", "--resume", "broken", "iterations=3"], 2))
    expected, found = final_tensors(one), final_tensors(tmp_path / "broken")
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=0, msg=name.__add__)
