"""The shapes reward on rendered images: right, wrong in one attribute, empty."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.labs.shapes.world import all_prompts, render
from mmrl.rewards.images.shapes import Shapes
from tests.parameters import in_one_test
from tests.rewards.example import Example
from tests.rewards.example import make_batch as batch_of

RENDERED = "red circle top left"


def batch(drawn: list[str], asked: list[str], seed: int) -> RewardBatch:
    images = render(drawn, torch.Generator().manual_seed(seed))
    return batch_of(Outputs(images=images), asked)


def random_batch(random: random.Random) -> RewardBatch:
    """Right images, images of other prompts, and an empty canvas."""
    asked = random.sample(all_prompts(), 2)
    drawn = [asked[0], asked[0], *random.sample(all_prompts(), 3), asked[1], *random.sample(all_prompts(), 2)]
    made = batch(drawn, [asked[0]] * 4 + [asked[1]] * 4, random.randrange(1000))
    assert made.outputs.images is not None
    made.outputs.images[-1] = 0.08
    return made


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: batch([RENDERED] * 4, [RENDERED] * 4, 0), settings={"measure": "correct"}
)


@in_one_test(
    ("measure", "high", "low"),
    [
        ("colour", ["red cross bottom right"], ["blue circle top left"]),
        ("shape", ["blue circle bottom right"], ["red cross top left"]),
        ("position", ["blue cross top left"], ["red circle bottom right"]),
        ("correct", [RENDERED], ["blue circle top left", "red cross top left", "red circle bottom right"]),
    ],
)
def test_each_measure_sees_its_attribute_alone(
    measure: Any, high: list[str], low: list[str], make_batch: Callable[..., RewardBatch]
) -> None:
    texts = [RENDERED, *high, *low]
    images = render([RENDERED] * len(texts), torch.Generator().manual_seed(0))
    scores = Shapes(measure=measure).score(make_batch(Outputs(images=images), texts))
    assert (scores[: 1 + len(high)] > 0.85).all()
    assert (scores[1 + len(high) :] < 0.2).all()


def test_graded_is_the_mean_of_the_three(make_batch: Callable[..., RewardBatch]) -> None:
    texts = [RENDERED, "blue circle top left", "red cross middle centre", "white square bottom right"]
    batch = make_batch(Outputs(images=render([RENDERED] * 4, torch.Generator().manual_seed(0))), texts)
    parts = [Shapes(measure=measure).score(batch) for measure in ("colour", "shape", "position")]
    torch.testing.assert_close(Shapes().score(batch), torch.stack(parts).mean(0))


def test_an_empty_canvas_scores_nothing(make_batch: Callable[..., RewardBatch]) -> None:
    batch = make_batch(Outputs(images=torch.full((1, 3, 32, 32), 0.08)), [RENDERED])
    assert Shapes().score(batch).tolist() == Shapes(measure="correct").score(batch).tolist() == [0.0]


def test_a_prompt_of_another_world_cannot_be_judged(make_batch: Callable[..., RewardBatch]) -> None:
    with pytest.raises(ValueError, match="no such prompt"):
        Shapes().score(make_batch(Outputs(images=torch.rand(1, 3, 32, 32)), ["a photo of a dog"]))
