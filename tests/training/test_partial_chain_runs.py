"""Runs that begin at clips of the data, on the motion lab."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from torch import Tensor

from mmrl.commands.train import train
from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.run_directory.start import new_run, resumed_run
from tests.process_runs import metrics
from tests.tiny_runs import assert_same, numbers


@dataclass(frozen=True)
class Brightness:
    """The mean of an image."""

    source: ClassVar[str] = "here"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images"})
    batch_size: ClassVar[int | None] = None

    def score(self, batch: RewardBatch) -> Tensor:
        assert batch.outputs.images is not None
        return batch.outputs.images.mean((1, 2, 3))


EDITING = (
    "prompts.train=lab:motion/pairs",
    "group_size=2",
    "prompts_per_iteration=4",
    "evaluation=null",
    "checkpoint.every=1",
    "sampler={name: partial_chain, num_steps: 4, sigmas: uniform, strength: 0.75}",
    "rewards=[{name: frame_mean, reward: {name: tests.training.test_partial_chain_runs:Brightness}, segments: 3, "
    "attenuation: 0.5, label: brightness}]",
    "loss={name: draft, num_steps: 1}",
    "updates={micro_batch: 4}",
)


@pytest.mark.slow  # 10 s: two short runs of a lab's pipeline
def test_a_resumed_run_begins_at_the_same_clips_and_judges_the_same_frames(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder, iterations in ((whole, 3), (parts, 1)):
        train(*new_run("quickstart_text_to_video", [*EDITING, f"iterations={iterations}"], folder))
    train(resumed_run(parts, ["iterations=3"]), parts, resume=True)
    assert_same(numbers(parts), numbers(whole))
    lines = metrics(whole)
    assert [line["calls/rollout"] for line in lines] == [4 * 2 * 3] * 3  # three of four steps
    assert all(line["calls/update"] == 4 * 2 for line in lines)  # the last one
    assert all(line["optimizer/grad_norm"] > 0 for line in lines)
