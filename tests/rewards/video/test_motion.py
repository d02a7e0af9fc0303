"""The motion reward on rendered clips: right, wrong in one attribute, empty."""

import random
from typing import Any

import pytest
import torch

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.labs.motion.world import all_prompts, render
from mmrl.rewards.video.motion import Motion
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch

RENDERED = "red circle moves right"


def batch(drawn: list[str], asked: list[str], seed: int) -> RewardBatch:
    return make_batch(Outputs(videos=render(drawn, torch.Generator().manual_seed(seed))), asked)


def random_batch(random: random.Random) -> RewardBatch:
    """Right clips, clips of other prompts, and an empty canvas."""
    asked = random.sample(all_prompts(), 2)
    drawn = [asked[0], asked[0], *random.sample(all_prompts(), 3), asked[1], *random.sample(all_prompts(), 2)]
    made = batch(drawn, [asked[0]] * 4 + [asked[1]] * 4, random.randrange(1000))
    assert made.outputs.videos is not None
    made.outputs.videos[-1] = 0.08
    return made


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: batch([RENDERED] * 4, [RENDERED] * 4, 0), settings={"measure": "correct"}
)


@in_one_test(
    ("measure", "high", "low"),
    [
        ("colour", ["red cross moves up"], ["blue circle moves right"]),
        ("shape", ["blue circle moves up"], ["red cross moves right"]),
        ("motion", ["blue cross moves right"], ["red circle moves up"]),
        ("correct", [RENDERED], ["blue circle moves right", "red cross moves right", "red circle moves up"]),
    ],
)
def test_each_measure_sees_its_attribute_alone(measure: Any, high: list[str], low: list[str]) -> None:
    texts = [RENDERED, *high, *low]
    scores = Motion(measure=measure).score(batch([RENDERED] * len(texts), texts, 0))
    assert (scores[: 1 + len(high)] > 0.85).all()
    assert (scores[1 + len(high) :] < 0.2).all()


def test_graded_is_the_mean_of_the_three() -> None:
    made = batch(
        [RENDERED] * 4, [RENDERED, "blue circle moves up", "red cross moves left", "white square moves down"], 0
    )
    parts = [Motion(measure=measure).score(made) for measure in ("colour", "shape", "motion")]
    torch.testing.assert_close(Motion().score(made), torch.stack(parts).mean(0))


def test_a_prompt_of_another_world_and_clips_of_another_length_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="no such prompt"):
        Motion().score(make_batch(Outputs(videos=torch.rand(1, 9, 3, 32, 32)), ["a photo of a dog"]))
    with pytest.raises(ValueError, match=r"clips have shape \[1, 8, 3, 32, 32\]"):
        Motion().score(make_batch(Outputs(videos=torch.rand(1, 8, 3, 32, 32)), [RENDERED]))
