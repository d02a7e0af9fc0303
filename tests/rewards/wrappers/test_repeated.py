"""repeated by hand: calls that differ, the discount e^(-|r1 - r2|), noise on images."""

import math
import random
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Granularity, RewardBatch
from mmrl.core.data import Outputs
from mmrl.core.keys import generator
from mmrl.core.plugins import build
from mmrl.core.reward_batches import select
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers, make_batch
from tests.rewards.inner import WRITTEN

NOISY: dict[str, Any] = {"name": "python", "function": "tests.rewards.wrappers.test_repeated:wavering", "range": [0, 1]}


def wavering(text: str, seed: int) -> float:
    """The number that a text writes, but 0.5 half of the time where it ends with a question mark."""
    number = float(text.rstrip("?"))
    return 0.5 if text.endswith("?") and seed % 2 else number


def random_batch(source: random.Random) -> RewardBatch:
    texts = ["0", "1", *(f"{source.random()}{source.choice(['', '?'])}" for _ in range(10))]
    batch = answers(texts)
    return replace(batch, seeds=tuple(source.getrandbits(40) for _ in texts))


EXAMPLE = Example(random_batch=random_batch, best=lambda: answers(["1"] * 4), settings={"reward": NOISY})


@dataclass
class Brightness:
    """The mean of an image; remembers the seeds and images that it was seen about."""

    source: ClassVar[str] = "these tests"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images"})
    batch_size: ClassVar[int | None] = None
    seen: list[RewardBatch] = field(default_factory=list, init=False)

    def score(self, batch: RewardBatch) -> Tensor:
        self.seen.append(batch)
        if batch.outputs.each is not None:
            return torch.stack([one.images.mean() for one in batch.outputs.each if one.images is not None])
        assert batch.outputs.images is not None
        return batch.outputs.images.mean((1, 2, 3))


BRIGHTNESS = {"name": "tests.rewards.wrappers.test_repeated:Brightness"}


def grey(levels: list[float], side: int = 8) -> RewardBatch:
    images = torch.tensor(levels).view(-1, 1, 1, 1).expand(-1, 3, side, side).clone()
    return replace(make_batch(Outputs(images=images), ["a"] * len(levels)), seeds=tuple(range(10, 10 + len(levels))))


def test_two_calls_are_discounted_by_their_distance() -> None:
    reward = build("rewards", {"name": "repeated", "reward": NOISY})
    batch = replace(answers(["0.9?"] * 40 + ["0.9"]), seeds=tuple(range(41)))
    scores = reward.score(batch).tolist()
    both, one, none = 0.9, 0.7 * math.exp(-0.4), 0.5  # |0.9 - 0.5| = 0.4
    allowed = [min((both, one, none), key=lambda value: abs(value - score)) for score in scores]
    assert scores == pytest.approx(allowed, abs=1e-6)
    assert {round(value, 3) for value in allowed} == {round(value, 3) for value in (both, one, none)}
    assert scores[-1] == pytest.approx(0.9)
    lower = build("rewards", {"name": "repeated", "reward": NOISY, "kind": "worst", "times": 9})
    assert lower.score(batch).tolist() == pytest.approx([0.5] * 40 + [0.9], abs=1e-6)  # 2^-9 each that no call wavers


def test_the_published_loss_is_that_of_two_calls_by_their_distance() -> None:
    """1 - (L e^(-|r1 - r2|) + 0.1 |r1 - r2|), L the distance of the mean to 1."""
    settings = {"name": "repeated", "reward": NOISY, "kind": "weighted_loss", "own_weight": 0.2}
    reward = build("rewards", settings)
    scores = reward.score(replace(answers(["0.9?"] * 40 + ["0.9"]), seeds=tuple(range(41)))).tolist()
    both, one, none = 0.9, 1 - (0.3 * math.exp(-0.4) + 0.1 * 0.4), 0.5  # |0.9 - 0.5| = 0.4
    allowed = [min((both, one, none), key=lambda value: abs(value - score)) for score in scores]
    assert scores == pytest.approx(allowed, abs=1e-6)
    assert {round(value, 3) for value in allowed} == {round(value, 3) for value in (both, one, none)}
    assert reward.range == (-0.1, 1.0)


def test_calls_have_seeds_of_their_own_and_do_not_depend_on_the_batch() -> None:
    reward = build("rewards", {"name": "repeated", "reward": BRIGHTNESS, "noise": 0.1, "times": 3})
    batch = grey([0.2, 0.5, 0.5, 0.8])
    whole = reward.score(batch)
    seeds = [seed for one in reward.reward.seen for seed in one.seeds]
    assert len(set(seeds) | set(batch.seeds)) == 12 + 4
    for one in reward.reward.seen:
        assert one.generator.initial_seed() == generator(*one.seeds).initial_seed()
    assert whole[1] != whole[2], "two samples have noise of their own"
    assert torch.equal(whole, reward.score(batch))
    for rows in ([2, 0], [3], [3, 2, 1, 0]):
        assert torch.equal(reward.score(select(batch, torch.tensor(rows))), whole[rows])


def test_the_noise_has_its_spread_and_stays_in_the_range() -> None:
    reward = build("rewards", {"name": "repeated", "reward": BRIGHTNESS, "noise": 0.05, "times": 2})
    batch: Any = grey([0.5, 1.0], 64)
    same: Any = grey([0.5, 1.0], 64)
    reward.score(batch)
    first, second = (one.outputs.images for one in reward.reward.seen)
    n = 3 * 64 * 64
    assert float((first[0] - 0.5).std()) == pytest.approx(0.05, abs=4 * 0.05 / math.sqrt(2 * n))
    assert float((first[0] - second[0]).std()) == pytest.approx(0.05 * math.sqrt(2), abs=4 * 0.05 / math.sqrt(n))
    assert float(first.max()) == 1.0, "what leaves the range is cut off"
    assert torch.equal(batch.outputs.images, same.outputs.images), "the samples stay as they are"


def test_images_of_several_sizes_have_the_noise_that_they_have_alone() -> None:
    reward = build("rewards", {"name": "repeated", "reward": BRIGHTNESS, "noise": 0.1})
    small, large = grey([0.4]), replace(grey([0.6], 12), seeds=(77,))
    both = replace(
        make_batch(Outputs.join([small.outputs, large.outputs]), ["a", "a"]), seeds=(*small.seeds, *large.seeds)
    )
    assert reward.score(both).tolist() == [*reward.score(small).tolist(), *reward.score(large).tolist()]


def test_the_mean_passes_a_gradient() -> None:
    reward = build("rewards", {"name": "repeated", "reward": BRIGHTNESS, "noise": 0.01, "scale": 0.0})
    batch = grey([0.5])
    images = batch.outputs.images.requires_grad_()  # type: ignore[union-attr]
    (gradient,) = torch.autograd.grad(reward.score(batch).sum(), images)
    torch.testing.assert_close(gradient, torch.full_like(gradient, 1 / images.numel()))


def test_random_frames_of_a_video_are_other_ones_in_each_call() -> None:
    segments = {"name": "frame_mean", "segments": 1, "reward": BRIGHTNESS}
    reward = build("rewards", {"name": "repeated", "reward": segments, "times": 16, "kind": "disagreement"})
    videos = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1, 1).expand(1, 2, 3, 4, 4)
    assert -0.5 <= reward.score(make_batch(Outputs(videos=videos), ["a"])).item() < 0
    with pytest.raises(ConfigError, match="alike in every call"):
        build("rewards", {"name": "repeated", "reward": {"name": "frame_mean", "frames": 1, "reward": BRIGHTNESS}})


@in_one_test(
    ("settings", "message"),
    [
        ({"reward": WRITTEN}, "alike in every call: set `noise`, for a reward of images or videos, or take"),
        ({"reward": WRITTEN, "noise": 0.1}, "noise is for rewards of images or videos, got one that needs texts"),
        ({"reward": NOISY, "times": 1}, "times must be at least 2"),
        ({"reward": NOISY, "scale": -1.0}, "scale must be at least 0"),
        ({"reward": {"name": "jpeg_size"}, "noise": 0.1}, "for rewards of at least 0, got one that goes down to -inf"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("rewards", {"name": "repeated"} | settings)
