"""JPEG size against files on disk."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.images.jpeg_size import JpegSize
from tests.rewards.example import Example
from tests.rewards.example import make_batch as batch_of
from tests.rewards.pictures import SIDE, random_pictures


def flat() -> RewardBatch:
    """Images of one colour: no image of their size has a smaller file."""
    return batch_of(Outputs(images=torch.zeros(8, 3, SIDE, SIDE)), [""] * 8)


EXAMPLE = Example(random_batch=random_pictures, best=flat)


@pytest.mark.parametrize("quality", [95, 50])
def test_it_is_the_size_of_the_file_in_kilobytes(
    quality: int, tmp_path: Path, make_batch: Callable[..., RewardBatch]
) -> None:
    levels = torch.randint(256, (3, 40, 24, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    levels[1] //= 16
    levels[2] = 200
    sizes = []
    for number, level in enumerate(levels):
        file = tmp_path / f"{number}.jpg"
        Image.fromarray(level.numpy(), "RGB").save(file, quality=quality)
        sizes.append(file.stat().st_size / 1000)
    batch = make_batch(Outputs(images=levels.permute(0, 3, 1, 2) / 255), ["", "", ""])
    assert len(set(sizes)) == 3
    assert torch.equal(JpegSize(quality=quality).score(batch), -torch.tensor(sizes))
    assert torch.equal(JpegSize(compressible=False, quality=quality).score(batch), torch.tensor(sizes))


def test_values_are_rounded_to_the_nearest_level_and_cut_at_the_ends(make_batch: Callable[..., RewardBatch]) -> None:
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(256, (1, 3, 32, 32), generator=generator)
    near = levels + 0.9 * torch.rand(levels.shape, generator=generator) - 0.45
    near = torch.where(levels == 0, -40.0, torch.where(levels == 255, 300.0, near))
    exact, rough = (JpegSize().score(make_batch(Outputs(images=values / 255), [""])) for values in (levels, near))
    assert torch.equal(exact, rough)


def test_an_image_with_nan_cannot_be_judged(make_batch: Callable[..., RewardBatch]) -> None:
    images = torch.rand(2, 3, 8, 8)
    images[1, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinity"):
        JpegSize().score(make_batch(Outputs(images=images), ["", ""]))


@pytest.mark.parametrize("quality", [0, 101])
def test_settings_are_checked(quality: int) -> None:
    with pytest.raises(ValueError, match=rf"quality must be at least 1 and at most 100, got {quality}"):
        JpegSize(quality=quality)


def test_the_range_ends_at_nought_on_one_side() -> None:
    assert JpegSize().range == (-float("inf"), 0.0)
    assert JpegSize(compressible=False).range == (0.0, float("inf"))
