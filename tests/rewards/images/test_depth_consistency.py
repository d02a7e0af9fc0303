"""Depth consistency against transformers' own DPT and sums over pixels written out."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from transformers import DPTForDepthEstimation

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.media.pictures import Role
from mmrl.rewards.base.networks.clip import write_tiny_clip
from mmrl.rewards.base.networks.depth import divided_by_largest
from mmrl.rewards.images.depth_consistency import DepthConsistency
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, random_images, shown, smooth_images
from tests.rewards.roles import with_roles


def batch_of(images: Tensor, others: Tensor, role: Role = "control") -> RewardBatch:
    return with_roles(make_batch(Outputs(images=images), [""] * len(images), media=shown(others)), (role,))


def random_batch(rng: random.Random) -> RewardBatch:
    maps = random_images(rng, 2 * GROUP).clamp(0.1, 1)
    return batch_of(random_images(rng, 2 * GROUP), maps)


# No truth: what a random network sees in an image is no picture that could be given.
EXAMPLE = Example(random_batch=random_batch)


def ready(folder: Path, **settings: Any) -> DepthConsistency:
    reward = DepthConsistency(**settings).tiny(0, folder)
    reward.prepare(CPU)
    return reward


def by_hand(folder: Path, image: Tensor) -> Tensor:
    """The depth [32, 32] of one image [3, 32, 32], pixel by pixel over its largest value; nothing is resized."""
    model = DPTForDepthEstimation.from_pretrained(folder)
    with torch.no_grad():
        seen = model((image[None] - 0.5) / 0.5).predicted_depth
    depth: Tensor = interpolate(seen[None], (32, 32), mode="bilinear", antialias=True)[0, 0]
    shown: Tensor = depth / max(depth.flatten().tolist())
    return shown


@pytest.mark.slow
def test_the_score_is_the_mean_square_over_pixels(tmp_path: Path) -> None:
    reward = ready(tmp_path)
    images, maps = smooth_images(32, 32), (random_images(random.Random(1), 4).clamp(0.2, 0.7) * 255).round() / 255
    found = reward.score(batch_of(images, maps))
    for number in range(4):
        seen = by_hand(tmp_path, images[number]).flatten().tolist()
        grey = (maps[number].sum(0) / 3).flatten().tolist()
        errors = [(one - other / max(grey)) ** 2 for one, other in zip(seen, grey, strict=True)]
        assert float(found[number]) == pytest.approx(-sum(errors) / len(errors), abs=1e-5)
    assert found.std() > 1e-4


@pytest.mark.slow
def test_a_picture_is_judged_by_its_own_depth(tmp_path: Path) -> None:
    reward = ready(tmp_path, against="picture")
    images = (smooth_images(32, 32) * 255).round() / 255
    same = reward.score(batch_of(images, images, "image"))
    torch.testing.assert_close(same, torch.zeros(4), rtol=0, atol=1e-9)
    found = reward.score(batch_of(images, images.flip(0), "image"))
    maps = torch.stack([by_hand(tmp_path, image) for image in images])
    torch.testing.assert_close(found, -(maps - maps.flip(0)).square().mean((1, 2)), rtol=0, atol=1e-5)
    assert found.max() < -1e-6


@pytest.mark.slow
def test_a_map_of_another_brightness_or_size_asks_for_the_same(tmp_path: Path) -> None:
    reward = ready(tmp_path)
    images = smooth_images(40, 56)
    step = torch.zeros(4, 3, 40, 56)
    step[..., 28:] = 1.0
    found = reward.score(batch_of(images, step))
    torch.testing.assert_close(reward.score(batch_of(images, step * 0.4)), found, rtol=0, atol=1e-5)
    larger = step.repeat_interleave(2, -1).repeat_interleave(2, -2)
    torch.testing.assert_close(reward.score(batch_of(images, larger)), found, rtol=0, atol=1e-2)


def test_a_map_is_divided_by_its_largest_value() -> None:
    maps = torch.tensor([[[0.0, 2.0], [4.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
    expected = torch.tensor([[[0.0, 0.5], [1.0, 0.25]], [[0.0, 0.0], [0.0, 0.0]]])
    assert torch.equal(divided_by_largest(maps), expected)


@pytest.mark.slow
def test_what_cannot_be_judged_or_loaded_is_the_users_error(tmp_path: Path) -> None:
    reward = ready(tmp_path / "dpt")
    with pytest.raises(ValueError, match="a depth map is black everywhere"):
        reward.score(batch_of(smooth_images(32, 32), torch.zeros(4, 3, 32, 32)))
    with pytest.raises(ConfigError, match="cannot load the DPT '/no/such"):
        DepthConsistency(model="/no/such").prepare(CPU)
    write_tiny_clip("transformers", tmp_path / "clip", 0, embedding=4)
    with pytest.raises(ConfigError, match="its model_type is 'clip', not dpt"):
        DepthConsistency(model=str(tmp_path / "clip")).prepare(CPU)


def test_prompts_are_checked() -> None:
    media = shown(torch.zeros(1, 3, 8, 8))[0]
    with pytest.raises(ValueError, match="needs an image of the role 'control', and the row has image"):
        DepthConsistency().check(Prompt("", media, roles=("image",)))
    DepthConsistency().check(Prompt("", media, roles=("control",)))
    DepthConsistency(against="picture").check(Prompt("", media, roles=("image",)))
    with pytest.raises(ValueError, match="against must be one of map, picture, got 'edges'"):
        DepthConsistency(against="edges")  # type: ignore[arg-type]
