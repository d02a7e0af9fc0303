"""The soft verifier of the shapes lab: it sees what the hard one sees, and its gradient is true."""

import random

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.labs.shapes.soft import soft_scores
from mmrl.labs.shapes.world import COLOURS, all_prompts, attributes, render, verify
from mmrl.rewards.images.soft_shapes import SoftShapes
from tests.rewards.example import Example, make_batch

PROMPTS = all_prompts()
RENDERED = render(PROMPTS, torch.Generator().manual_seed(0))


def random_batch(random: random.Random) -> RewardBatch:
    """Right images, images of other prompts, and an empty canvas."""
    asked = random.sample(range(216), 2)
    drawn = [asked[0], asked[0], *random.sample(range(216), 3), asked[1], *random.sample(range(216), 2)]
    images = RENDERED[drawn]
    images[-1] = 0.08
    return make_batch(Outputs(images=images), [PROMPTS[asked[0]]] * 4 + [PROMPTS[asked[1]]] * 4)


EXAMPLE = Example(random_batch=random_batch, best=lambda: make_batch(Outputs(images=RENDERED), PROMPTS))


def rendered(prompts: list[str], seed: int = 0) -> Tensor:
    return render(prompts, torch.Generator().manual_seed(seed))


def graded(images: Tensor, prompts: list[str]) -> Tensor:
    return torch.stack(soft_scores(images, prompts)).mean(0)


def test_what_was_asked_for_scores_high_and_each_attribute_is_seen_alone() -> None:
    images, wanted = rendered(PROMPTS), attributes(PROMPTS)
    colour, shape, position = soft_scores(images, PROMPTS)
    assert colour.min() > 0.7 and shape.mean() > 0.8 and shape.min() > 0.45 and position.min() > 0.9
    others = torch.randperm(216, generator=torch.Generator().manual_seed(1))
    there = attributes([PROMPTS[row] for row in others.tolist()])
    found = soft_scores(images, [PROMPTS[row] for row in others.tolist()])
    kept = (wanted.colour == there.colour, wanted.shape == there.shape, wanted.cell == there.cell)
    for score, is_right in zip(found, kept, strict=True):
        assert score[is_right].min() > score[~is_right].max() + 0.1 and score[~is_right].mean() < 0.3


def test_it_ranks_as_the_verifier_does() -> None:
    """Images between two prompts: where one is better by the verifier's graded score, it is by the soft one."""
    share = torch.linspace(0, 1, 216)[torch.randperm(216, generator=torch.Generator().manual_seed(2))]
    blends = rendered(PROMPTS) * (1 - share.view(-1, 1, 1, 1)) + rendered(PROMPTS[::-1], 1) * share.view(-1, 1, 1, 1)
    hard, soft = verify(blends, PROMPTS).graded, graded(blends, PROMPTS)
    assert float(torch.corrcoef(torch.stack([hard, soft]))[0, 1]) > 0.9


def test_an_empty_or_a_full_image_scores_nothing() -> None:
    for level in (0.08, 0.9):
        assert graded(torch.full((2, 3, 32, 32), level), PROMPTS[:2]).max() < 0.01


def test_its_gradient_agrees_with_finite_differences() -> None:
    source = torch.Generator().manual_seed(3)
    prompts = PROMPTS[::31]
    images = rendered(PROMPTS[5::31], 4).double()[: len(prompts)]
    images = (0.8 * images + 0.1 * torch.rand(images.shape, generator=source)).requires_grad_()

    def total(at: Tensor, part: int) -> Tensor:
        return soft_scores(at, prompts)[part].sum()

    for part in range(3):
        (gradient,) = torch.autograd.grad(total(images, part), images)
        along, step = torch.randn(images.shape, generator=source).double(), 1e-6
        with torch.no_grad():
            slope = (total(images + step * along, part) - total(images - step * along, part)) / (2 * step)
        # pixels on a corner of a template or between two channels have two slopes
        assert float((gradient * along).sum()) == pytest.approx(float(slope), rel=0.05)
        assert gradient.abs().amax((1, 2, 3)).min() > 1e-4


def test_a_wrong_colour_and_a_wrong_place_have_a_slope_towards_the_right_one() -> None:
    image = rendered(["red circle top left"])
    goal = torch.tensor(COLOURS["blue"]).view(1, 3, 1, 1)
    bluer = torch.where(image > 0.1, image + 0.02 * (goal - image), image)
    assert graded(bluer, ["blue circle top left"]) > graded(image, ["blue circle top left"])
    moved = image.roll(1, 3)
    assert graded(moved, ["red circle top right"]) > graded(image, ["red circle top right"]) + 1e-3


def test_measures_are_the_parts_and_their_mean() -> None:
    images = rendered(PROMPTS[:5])
    batch = make_batch(Outputs(images=images), PROMPTS[:5])
    parts = [SoftShapes(measure).score(batch) for measure in ("colour", "shape", "position")]
    torch.testing.assert_close(SoftShapes().score(batch), torch.stack(parts).mean(0))
    torch.testing.assert_close(parts, list(soft_scores(images, PROMPTS[:5])))


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"images have shape \[1, 3, 16, 16\]; 1 prompts need \[1, 3, 32, 32\]"):
        soft_scores(torch.zeros(1, 3, 16, 16), PROMPTS[:1])
