"""What is kept outside of a mask, against sums over pixels written out."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.rewards.images.kept_outside_mask import KeptOutsideMask
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import Shown, random_images, to_pil
from tests.rewards.roles import with_roles


def mask(side: int, box: tuple[int, int, int, int]) -> Shown:
    found = Image.new("L", (side, side))
    found.paste(255, box)
    return Shown(found)


def batch_of(images: torch.Tensor, sources: torch.Tensor, masks: list[Shown]) -> RewardBatch:
    media = [(Shown(one), other) for one, other in zip(to_pil(sources), masks, strict=True)]
    return with_roles(make_batch(Outputs(images=images), [""] * len(images), media=media), ("image", "mask"))


def random_batch(rng: random.Random) -> RewardBatch:
    masks = [mask(32, (rng.randrange(8), rng.randrange(8), 20, 20))] * 2 * GROUP
    images, sources = random_images(rng, 2 * GROUP), random_images(rng, 2 * GROUP)
    if rng.randrange(2):  # opposite corners of the colour cube, and the same picture
        sources = images.round()
        images = torch.cat([sources[:GROUP], 1 - sources[GROUP:]])
    return batch_of(images, sources, masks)


def best() -> RewardBatch:
    """Edits that change everything inside of the mask and nothing else."""
    sources = random_images(random.Random(0), 2 * GROUP)
    images = sources.clone()
    images[:, :, 4:20, 2:9] = 1 - images[:, :, 4:20, 2:9]
    return batch_of(images, sources, [mask(32, (2, 4, 9, 20))] * 2 * GROUP)


EXAMPLE = Example(random_batch=random_batch, best=best)


def test_the_score_is_the_mean_over_pixels_outside() -> None:
    images, sources = random_images(random.Random(1), 2, 6), random_images(random.Random(2), 2, 6)
    boxes = [(0, 0, 3, 2), (2, 1, 6, 6)]
    scores = KeptOutsideMask().score(batch_of(images, sources, [mask(6, box) for box in boxes]))
    for n, (x1, y1, x2, y2) in enumerate(boxes):
        distances = []
        for y in range(6):
            for x in range(6):
                if not (x1 <= x < x2 and y1 <= y < y2):
                    distances += [abs(float(images[n, c, y, x]) - float(sources[n, c, y, x])) for c in range(3)]
        assert float(scores[n]) == pytest.approx(1 - np.mean(distances), abs=1e-6)


def test_a_larger_source_is_resized_and_its_mask_keeps_its_border() -> None:
    """A source of two flat halves, of twice the size: the mask covers one of them."""
    source = torch.zeros(1, 3, 16, 16)
    source[..., 8:] = 1
    image = torch.zeros(1, 3, 8, 8)
    image[..., 4:] = 1
    image[..., :4] = 0.5  # only under the mask
    score = KeptOutsideMask().score(batch_of(image, source, [mask(16, (0, 0, 8, 16))]))
    assert float(score) > 0.97  # bicubic resizing is smooth at the edge


def test_the_gradient_reaches_pixels_outside_alone() -> None:
    images = torch.full((1, 3, 6, 6), 0.5, requires_grad=True)
    KeptOutsideMask().score(batch_of(images, torch.zeros(1, 3, 6, 6), [mask(6, (0, 0, 3, 6))])).sum().backward()
    assert images.grad is not None
    assert not images.grad[..., :3].any() and bool((images.grad[..., 3:] < 0).any())


def test_a_mask_that_is_white_everywhere_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="white everywhere"):
        KeptOutsideMask().score(batch_of(torch.zeros(1, 3, 4, 4), torch.zeros(1, 3, 4, 4), [mask(4, (0, 0, 4, 4))]))


def test_a_prompt_without_a_mask_is_refused_when_data_is_loaded() -> None:
    one = Shown(Image.new("RGB", (4, 4)))
    with pytest.raises(ValueError, match="needs an image of the role 'mask', and the row has 2 images without roles"):
        KeptOutsideMask().check(Prompt("a", (one, one)))
    with pytest.raises(ValueError, match="and the row has image, control"):
        KeptOutsideMask().check(Prompt("a", (one, one), roles=("image", "control")))
    KeptOutsideMask().check(Prompt("a", (one, one), roles=("image", "mask")))
