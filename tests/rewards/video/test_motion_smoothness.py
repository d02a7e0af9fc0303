"""Smoothness of motion against hand numbers, a slow loop, and its own inequality."""

import random

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.video.motion_smoothness import MotionSmoothness
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch


def batch_of(videos: Tensor) -> RewardBatch:
    return make_batch(Outputs(videos=videos), ["a lake"] * len(videos))


def grey(*levels: float) -> Tensor:
    """[1, F, 3, 2, 2]: frames of one grey each."""
    return torch.tensor(levels).view(1, -1, 1, 1, 1).repeat(1, 1, 3, 2, 2)


def random_batch(source: random.Random) -> RewardBatch:
    """Random videos: even ramps, noise, and turns from black to white."""
    generator = torch.Generator().manual_seed(source.getrandbits(32))
    noise = torch.rand(8, 5, 3, 6, 7, generator=generator)
    ends = noise[:, :1], noise[:, 1:2]
    ramp = ends[0] + (ends[1] - ends[0]) * torch.linspace(0, 1, 5)[:, None, None, None]
    turning = (torch.arange(5) % 2).float()[:, None, None, None].expand_as(noise)
    strength = torch.rand(8, 1, 1, 1, 1, generator=generator).sqrt()
    return batch_of(strength * torch.stack([turning, noise, ramp], 1)[torch.arange(8), torch.arange(8) % 3])


def best() -> RewardBatch:
    """Light that rises or falls evenly, and a still video."""
    return batch_of(torch.cat([grey(0, 0.25, 0.5, 0.75), grey(1, 0.75, 0.5, 0.25), grey(0.5, 0.5, 0.5, 0.5)]))


EXAMPLE = Example(random_batch=random_batch, best=best)


def slow(video: Tensor) -> tuple[float, float]:
    """The mean deviation from the neighbours' mean, and the mean distance to the neighbours, number by number."""
    flat = video.flatten(1).tolist()
    deviations, distances = [], []
    for t in range(1, len(flat) - 1):
        for before, here, after in zip(flat[t - 1], flat[t], flat[t + 1], strict=True):
            deviations.append(abs(here - (before + after) / 2))
            distances.append((abs(here - before) + abs(here - after)) / 2)
    return sum(deviations) / len(deviations), sum(distances) / len(distances)


@in_one_test(
    ("levels", "expected"),
    [
        ((0.3, 0.3, 0.3), 1.0),
        ((0.0, 0.5, 1.0), 1.0),
        ((0.0, 1.0, 0.0), 0.0),
        ((0.0, 0.0, 1.0), 0.5),
        ((0.0, 0.0, 0.0, 0.8), 0.8),  # deviations 0 and 0.4
    ],
)
def test_hand_numbers(levels: tuple[float, ...], expected: float) -> None:
    assert MotionSmoothness().score(batch_of(grey(*levels))).tolist() == pytest.approx([expected], abs=1e-6)


@in_one_test(
    ("levels", "expected"),
    [
        ((0.3, 0.3, 0.3), 1.0),  # nothing moves
        ((0.0, 0.5, 1.0), 1.0),
        ((0.0, 0.01, 0.0), 0.0),  # however little it turns
        ((0.0, 0.0, 1.0), 0.0),  # all of the distance, 0.5, is deviation
        ((0.0, 0.25, 1.0), 1 - 0.25 / 0.5),
    ],
)
def test_hand_numbers_of_the_relative_form(levels: tuple[float, ...], expected: float) -> None:
    found = MotionSmoothness(relative=True).score(batch_of(grey(*levels))).tolist()
    assert found == pytest.approx([expected], abs=1e-6)


def test_both_forms_are_the_slow_loops() -> None:
    videos = torch.rand(3, 6, 3, 4, 5, generator=torch.Generator().manual_seed(2))
    deviation, distance = torch.tensor([slow(video) for video in videos]).T
    torch.testing.assert_close(MotionSmoothness().score(batch_of(videos)), 1 - deviation)
    torch.testing.assert_close(MotionSmoothness(relative=True).score(batch_of(videos)), 1 - deviation / distance)


@pytest.mark.parametrize("strength", [1e-6, 1e-3, 1.0])
def test_the_relative_form_does_not_pay_for_moving_less(strength: float) -> None:
    videos = torch.rand(3, 6, 3, 4, 5, generator=torch.Generator().manual_seed(2)) * strength
    relative = MotionSmoothness(relative=True).score(batch_of(videos))
    torch.testing.assert_close(
        relative, MotionSmoothness(relative=True).score(batch_of(videos / strength)), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("relative", [False, True])
def test_the_gradient_is_that_of_finite_differences_and_finite_where_nothing_moves(relative: bool) -> None:
    reward = MotionSmoothness(relative=relative)
    videos = 0.2 + 0.6 * torch.rand(2, 4, 3, 3, 3, generator=torch.Generator().manual_seed(3)).double()
    values = videos.float().requires_grad_()
    (gradient,) = torch.autograd.grad(reward.score(batch_of(values)).sum(), values)
    step = torch.zeros_like(videos)
    step[1, 2, 0, 1, 1] = 1e-2
    with torch.no_grad():
        up, down = (reward.score(batch_of((videos + sign * step).float())).sum() for sign in (1, -1))
    torch.testing.assert_close(gradient[1, 2, 0, 1, 1], (up - down) / 2e-2, rtol=0.02, atol=1e-5)

    still = torch.full((1, 3, 3, 2, 2), 0.5, requires_grad=True)
    (gradient,) = torch.autograd.grad(reward.score(batch_of(still)).sum(), still)
    assert gradient.isfinite().all()


def test_two_frames_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match=r"at least 3 frames.*\(1, 2, 3, 4, 4\)"):
        MotionSmoothness().score(batch_of(torch.zeros(1, 2, 3, 4, 4)))
