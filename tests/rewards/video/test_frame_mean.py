"""Rewards of images asked about frames: which frames, how they are joined, what is passed on."""

import math
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Granularity, Placement, RewardBatch
from mmrl.core.data import Outputs
from mmrl.core.plugins import build
from mmrl.rewards.images.jpeg_size import JpegSize
from mmrl.rewards.models.clip_score import ClipScore
from mmrl.rewards.text.exact_answer import ExactAnswer
from mmrl.rewards.video.frame_mean import FrameMean
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch

CPU = Placement(torch.device("cpu"), torch.float32)


def batch_of(videos: Tensor, targets: list[dict[str, Any]] | None = None) -> RewardBatch:
    return make_batch(Outputs(videos=videos), [f"video {n}" for n in range(len(videos))], targets or [])


def random_batch(source: random.Random) -> RewardBatch:
    """Random videos, from flat to noise."""
    generator = torch.Generator().manual_seed(source.getrandbits(32))
    return batch_of(torch.rand(8, 3, 3, 24, 24, generator=generator) * torch.linspace(0, 1, 8).view(8, 1, 1, 1, 1))


# No truth: what is best is the affair of the reward that is held.
EXAMPLE = Example(random_batch=random_batch, settings={"reward": {"name": "jpeg_size"}, "frames": 2})


@dataclass
class Brightness:
    """Mean of the image times `target.factor`; keeps what it was asked."""

    source: ClassVar[str] = "here"
    range: ClassVar[tuple[float, float]] = (0.0, 2.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "target.factor"})
    batch_size: ClassVar[int | None] = 4

    batches: list[RewardBatch] = field(default_factory=list)

    def score(self, batch: RewardBatch) -> Tensor:
        self.batches.append(batch)
        assert batch.outputs.images is not None and batch.outputs.videos is None
        factors = torch.tensor([float(prompt.target["factor"]) for prompt in batch.prompts])
        return factors * batch.outputs.images.mean((1, 2, 3))


def grey(*levels: list[float]) -> Tensor:
    """[B, F, 3, 2, 2]: videos of grey frames."""
    return torch.tensor(levels)[:, :, None, None, None].repeat(1, 1, 3, 2, 2)


VIDEOS = grey([0.1, 0.2, 0.9, 0.4], [0.5, 0.5, 0.0, 1.0], [0.0, 0.0, 0.0, 0.4])
FACTORS = [{"factor": 1}, {"factor": 2}, {"factor": 1}]


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("mean", [0.4, 1.0, 0.1]), ("min", [0.1, 0.0, 0.0]), ("median", [0.3, 1.0, 0.0])],
)
def test_hand_numbers(reduction: Any, expected: list[float]) -> None:
    found = FrameMean(Brightness(), reduction=reduction).score(batch_of(VIDEOS, FACTORS))
    torch.testing.assert_close(found, torch.tensor(expected))


@in_one_test(
    ("num_frames", "frames", "expected"),
    [
        (8, 4, [1, 3, 5, 7]),
        (5, 1, [2]),
        (6, 1, [3]),
        (10, 3, [1, 5, 8]),  # 10/6, 30/6, 50/6
        (3, 3, [0, 1, 2]),
        (3, 9, [0, 1, 2]),
        (4, None, [0, 1, 2, 3]),
    ],
)
def test_frames_are_the_middles_of_equal_parts(num_frames: int, frames: int | None, expected: list[int]) -> None:
    held = Brightness()
    video = grey([n / 100 for n in range(num_frames)])
    FrameMean(held, frames=frames).score(batch_of(video, [{"factor": 1}]))
    asked = torch.cat([batch.outputs.images[:, 0, 0, 0] for batch in held.batches if batch.outputs.images is not None])
    assert (asked * 100).round().int().tolist() == expected


def test_each_frame_answers_the_prompt_of_its_video_and_batches_are_not_too_large() -> None:
    held = Brightness()
    FrameMean(held).score(batch_of(VIDEOS, FACTORS))
    assert [len(batch) for batch in held.batches] == [4, 4, 4]
    for row, batch in enumerate(held.batches):
        assert {prompt.text for prompt in batch.prompts} == {f"video {row}"}
        assert batch.seeds == (row,) * 4 and batch.episode.tolist() == [row] * 4


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("mean", [0.25, 0.25, 0.25, 0.25]), ("min", [1.0, 0, 0, 0]), ("median", [0.0, 0.5, 0, 0.5])],
)
def test_gradients_reach_the_frames_that_count(reduction: Any, expected: list[float]) -> None:
    videos = VIDEOS[:1].clone().requires_grad_()
    score = FrameMean(Brightness(), reduction=reduction).score(batch_of(videos, FACTORS[:1]))
    (gradient,) = torch.autograd.grad(score.sum(), videos)
    torch.testing.assert_close(gradient.sum((0, 2, 3, 4)), torch.tensor(expected))


def test_it_says_what_the_inner_reward_says() -> None:
    reward = FrameMean(Brightness())
    assert reward.needs == {"videos", "target.factor"} and reward.range == (0.0, 2.0) and reward.differentiable
    plain = FrameMean(JpegSize())
    assert plain.needs == {"videos"} and plain.range == JpegSize.range and not plain.differentiable
    assert FrameMean.needs == {"videos"}, "the class is left as it was"


@pytest.mark.slow
def test_a_reward_with_weights_is_prepared_and_has_its_tiny_twin(tmp_path: Path) -> None:
    reward: FrameMean = build("rewards", {"name": "frame_mean", "reward": {"name": "clip_score"}, "frames": 2})
    reward = reward.tiny(0, tmp_path)
    reward.prepare(CPU)
    videos = torch.rand(2, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    batch = batch_of(videos)
    alone: Any = reward.reward
    assert isinstance(alone, ClipScore)
    expected = torch.stack(
        [
            alone.score(make_batch(Outputs(images=videos[:, place]), [prompt.text for prompt in batch.prompts]))
            for place in (1, 3)
        ]
    ).mean(0)
    torch.testing.assert_close(reward.score(batch), expected, rtol=1e-5, atol=1e-6)


def test_the_check_of_the_inner_reward_is_called() -> None:
    with pytest.raises(ValueError, match="needs 'factor' in the target"):
        FrameMean(Brightness()).check(batch_of(VIDEOS).prompts[0])


def test_only_rewards_of_single_images_are_held() -> None:
    with pytest.raises(ValueError, match=r"must judge images, got one that needs target.answer, texts"):
        FrameMean(ExactAnswer())
    with pytest.raises(ValueError, match="must judge images, got one that needs videos"):
        FrameMean(FrameMean(JpegSize()))

    class Groups(Brightness):
        granularity: ClassVar[Granularity] = "group"

    with pytest.raises(ValueError, match="must judge samples, got one that judges groups"):
        FrameMean(Groups())


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="frames must be at least 1, or null, got 0"):
        FrameMean(JpegSize(), frames=0)
    with pytest.raises(ConfigError, match=r"rewards.frame_mean.reduction.*'max'"):
        build("rewards", {"name": "frame_mean", "reward": {"name": "jpeg_size"}, "reduction": "max"})


def test_a_video_without_frames_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="at least 1 frames"):
        FrameMean(JpegSize()).score(batch_of(torch.zeros(2, 0, 3, 4, 4)))


def seeded(videos: Tensor, seeds: list[int]) -> RewardBatch:
    return replace(batch_of(videos, [{"factor": 1.0}] * len(videos)), seeds=tuple(seeds))


def test_segments_judge_one_random_frame_of_each_part() -> None:
    """The grey of a frame is its number, so that the reward sees which frames were judged."""
    inner = Brightness()
    reward = FrameMean(reward=inner, segments=3)
    videos = grey(*[[float(n) for n in range(11)]] * 300)
    scores = reward.score(seeded(videos, list(range(300))))
    assert all(batch.outputs.images is not None for batch in inner.batches)
    judged = torch.cat([batch.outputs.images[:, 0, 0, 0] for batch in inner.batches]).view(300, 3)  # type: ignore[index]
    torch.testing.assert_close(scores, judged.mean(1))
    parts = ((0, 3), (3, 7), (7, 11))  # 11 frames in three: floor(11 / 3), floor(22 / 3)
    for column, (first, end) in zip(judged.T, parts, strict=True):
        counts = torch.bincount(column.long(), minlength=11)
        assert counts[first:end].sum() == 300
        assert (counts[first:end] > 0.6 * 300 / (end - first)).all(), "each about as often"


def test_the_frames_of_segments_follow_from_the_sample_s_own_seed() -> None:
    videos = grey(*[[float(n) for n in range(16)]] * 4)
    reward = FrameMean(reward=Brightness(), segments=4)
    scores = reward.score(seeded(videos, [5, 6, 7, 8]))
    torch.testing.assert_close(reward.score(seeded(videos, [8, 7, 6, 5])), scores.flip(0))
    assert len(set(scores.tolist())) > 1
    everything = FrameMean(reward=Brightness(), segments=16).score(seeded(videos, [5, 6, 7, 8]))
    torch.testing.assert_close(everything, torch.full((4,), 7.5))


def test_attenuation_makes_frames_far_from_the_middle_count_less() -> None:
    """By hand: 5 frames of brightness 1, 0.5, 0.25, 1, 0; their distances from frame 2 are 2, 1, 0, 1, 2."""
    reward = FrameMean(reward=Brightness(), attenuation=math.log(2))
    scores = reward.score(seeded(grey([1.0, 0.5, 0.25, 1.0, 0.0]), [3]))
    torch.testing.assert_close(scores, torch.tensor([(1 / 4 + 0.5 / 2 + 0.25 + 1 / 2 + 0) / 5]))
    # segments of one frame each, of an even number: the middle of 4 frames is frame 2
    reward = FrameMean(reward=Brightness(), segments=4, attenuation=1.0)
    scores = reward.score(seeded(grey([1.0, 1.0, 1.0, 1.0]), [3]))
    torch.testing.assert_close(scores, torch.tensor([(math.exp(-2) + math.exp(-1) + 1 + math.exp(-1)) / 4]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frames": 2, "segments": 2}, "both say which frames"),
        ({"attenuation": 1.0, "reduction": "min"}, "attenuation belongs to reduction 'mean', got 'min'"),
    ],
)
def test_settings_of_segments_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrameMean(reward=Brightness(), **settings)


def test_scores_of_random_frames_are_not_remembered() -> None:
    """Another sample with the same frames has a seed of its own, and so frames of its own."""
    inner = {"name": "frame_mean", "segments": 2, "reward": {"name": "jpeg_size"}}
    with pytest.raises(ConfigError, match="changes from call to call"):
        build("rewards", {"name": "cached", "reward": inner})
    build("rewards", {"name": "cached", "reward": inner | {"segments": None, "frames": 2}})
