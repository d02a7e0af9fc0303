"""Flickering against hand numbers and a slow loop over grey levels, as VBench has it."""

import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.video.flicker import Flicker
from tests.rewards.example import Example, make_batch


def batch_of(videos: Tensor) -> RewardBatch:
    return make_batch(Outputs(videos=videos), ["a lake"] * len(videos))


def random_batch(source: random.Random) -> RewardBatch:
    """Random videos, from still to those that turn from black to white."""
    generator = torch.Generator().manual_seed(source.getrandbits(32))
    strength = torch.rand(8, 1, 1, 1, 1, generator=generator)
    turning = (torch.arange(5) % 2).float()[:, None, None, None]
    noise = torch.rand(8, 5, 3, 6, 7, generator=generator)
    still = noise[:, :1].expand_as(noise)
    chosen = torch.stack([turning.expand_as(noise), noise, still], 1)[torch.arange(8), torch.arange(8) % 3]
    return batch_of((strength.sqrt() * chosen).clamp(0, 1))


def best() -> RewardBatch:
    """Still videos."""
    return batch_of(torch.rand(4, 1, 3, 5, 6, generator=torch.Generator().manual_seed(0)).expand(-1, 4, -1, -1, -1))


EXAMPLE = Example(random_batch=random_batch, best=best)


def test_hand_numbers() -> None:
    dark, bright = torch.zeros(3, 2, 2), torch.ones(3, 2, 2)
    one_pixel = dark.clone()
    one_pixel[0, 0, 0] = 0.6  # of 12 numbers
    videos = torch.stack(
        [
            torch.stack([dark, dark, dark]),
            torch.stack([dark, bright, dark]),
            torch.stack([dark, bright, bright]),
            torch.stack([dark, dark, one_pixel]),
        ]
    )
    found = Flicker().score(batch_of(videos))
    torch.testing.assert_close(found, torch.tensor([1.0, 0.0, 0.5, 1 - 0.6 / 12 / 2]))


def test_it_is_vbenchs_number_on_grey_levels() -> None:
    levels = torch.randint(0, 256, (2, 4, 3, 5, 6), generator=torch.Generator().manual_seed(1))
    expected = []
    for video in levels.tolist():
        errors = []
        for left, right in pairwise(video):
            flat = [
                abs(a - b)
                for lc, rc in zip(left, right, strict=True)
                for lr, rr in zip(lc, rc, strict=True)
                for a, b in zip(lr, rr, strict=True)
            ]
            errors.append(sum(flat) / len(flat))
        expected.append((255 - sum(errors) / len(errors)) / 255)
    torch.testing.assert_close(Flicker().score(batch_of(levels / 255)), torch.tensor(expected))


def test_two_frames_suffice_and_one_cannot_be_judged() -> None:
    assert Flicker().score(batch_of(torch.zeros(1, 2, 3, 4, 4))).tolist() == [1.0]
    with pytest.raises(ValueError, match=r"at least 2 frames.*\(1, 1, 3, 4, 4\)"):
        Flicker().score(batch_of(torch.zeros(1, 1, 3, 4, 4)))


def test_what_is_no_number_raises() -> None:
    videos = torch.zeros(1, 2, 3, 4, 4)
    videos[0, 0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinity"):
        Flicker().score(batch_of(videos))


def test_values_beyond_the_ends_are_cut_and_half_precision_is_widened() -> None:
    videos = torch.stack([torch.full((3, 4, 4), -3.0), torch.full((3, 4, 4), 5.0)])[None]
    assert Flicker().score(batch_of(videos)).tolist() == [0.0]
    assert Flicker().score(batch_of(videos.bfloat16())).dtype == torch.float32


def test_the_gradient_is_the_signs_over_the_count() -> None:
    videos = torch.tensor([0.2, 0.6, 0.3]).view(1, 3, 1, 1, 1).repeat(1, 1, 3, 1, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(Flicker().score(batch_of(videos)).sum(), videos)
    torch.testing.assert_close(gradient[0, :, 0, 0, 0], torch.tensor([1.0, -2.0, 1.0]) / 6)
