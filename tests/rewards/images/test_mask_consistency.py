"""Mask consistency against transformers' own UperNet and sums over pixels written out."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import SegformerConfig, SegformerForSemanticSegmentation, UperNetForSemanticSegmentation

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.media.pictures import Role
from mmrl.rewards.images.mask_consistency import TINY_CLASSES, MaskConsistency
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, random_images, shown, smooth_images
from tests.rewards.roles import with_roles

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def batch_of(images: Tensor, others: Tensor, role: Role = "control") -> RewardBatch:
    return with_roles(make_batch(Outputs(images=images), [""] * len(images), media=shown(others)), (role,))


def grey(numbers: Tensor) -> Tensor:
    """Label maps [B, 3, H, W] of numbers [B, H, W]."""
    return (numbers / 255)[:, None].expand(-1, 3, -1, -1)


def random_numbers(seed: int, count: int, side: int = 32) -> Tensor:
    """Numbers [count, side, side] from 0, which is no class, to one beyond the last class."""
    return torch.randint(0, TINY_CLASSES + 2, (count, side, side), generator=torch.Generator().manual_seed(seed))


def random_batch(rng: random.Random) -> RewardBatch:
    return batch_of(random_images(rng, 2 * GROUP), grey(random_numbers(rng.randrange(99), 2 * GROUP)))


# No truth: what a random network sees in an image is no map that could be given.
EXAMPLE = Example(random_batch=random_batch)


def ready(folder: Path, **settings: Any) -> MaskConsistency:
    reward = MaskConsistency(**settings).tiny(0, folder)
    reward.prepare(CPU)
    return reward


def by_hand(logits: Tensor, numbers: Tensor, first: int = 1) -> float:
    """Mean log-probability of one image's labels, pixel by pixel; logits [classes, h, w], numbers [h, w]."""
    total, count = 0.0, 0
    for place, number in enumerate(numbers.flatten().tolist()):
        said = [float(value) for value in logits.flatten(1)[:, place]]
        if 0 <= number - first < len(said):
            total += said[number - first] - math.log(sum(math.exp(one) for one in said))
            count += 1
    return total / count


def pixels(images: Tensor) -> Tensor:
    return (images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_the_score_is_the_mean_log_probability_of_the_labelled_pixels(first: int, tmp_path: Path) -> None:
    reward = ready(tmp_path, first_class=first)
    images, numbers = smooth_images(32, 32), random_numbers(1, 4)
    with torch.no_grad():
        logits = UperNetForSemanticSegmentation.from_pretrained(tmp_path)(pixels(images)).logits
    found = reward.score(batch_of(images, grey(numbers)))
    for number in range(4):
        assert float(found[number]) == pytest.approx(by_hand(logits[number], numbers[number], first), abs=1e-4)
    assert found.std() > 1e-4


@pytest.mark.slow
def test_labels_are_taken_at_the_size_of_the_logits(tmp_path: Path) -> None:
    config = SegformerConfig(
        hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, num_attention_heads=[1] * 4, decoder_hidden_size=16, num_labels=5
    )
    network = SegformerForSemanticSegmentation(config).eval()
    network.save_pretrained(tmp_path)
    reward = MaskConsistency(model=str(tmp_path))
    reward.prepare(CPU)
    images, numbers = smooth_images(32, 64), torch.randint(0, 7, (4, 32, 64))
    with torch.no_grad():
        logits = network(pixels(images)).logits
    assert logits.shape[-2:] == (8, 16)
    found = reward.score(batch_of(images, grey(numbers)))
    for number in range(4):
        few = numbers[number, ::4, ::4]
        assert float(found[number]) == pytest.approx(by_hand(logits[number], few), abs=1e-4)


@pytest.mark.slow
def test_a_palette_says_the_numbers_of_colours(tmp_path: Path) -> None:
    plain = ready(tmp_path)
    colours = [[0, 0, 0], [120, 120, 120], [180, 120, 120], [6, 230, 230], [80, 50, 50], [4, 200, 3], [250, 250, 0]]
    (tmp_path / "palette.json").write_text(json.dumps(colours))
    reward = MaskConsistency(model=plain.model, palette=tmp_path / "palette.json")
    reward.prepare(CPU)
    images, numbers = smooth_images(32, 32), random_numbers(2, 4)
    coloured = torch.tensor(colours, dtype=torch.float32)[numbers].permute(0, 3, 1, 2)
    expected = plain.score(batch_of(images, grey(numbers)))
    torch.testing.assert_close(reward.score(batch_of(images, coloured / 255)), expected)
    nearly = (coloured + torch.randint(-3, 4, coloured.shape)).clamp(0, 255)  # as JPEG leaves them
    torch.testing.assert_close(reward.score(batch_of(images, nearly / 255)), expected)
    with pytest.raises(ValueError, match="a label map has colours, and there is no palette"):
        plain.score(batch_of(images, coloured / 255))


@pytest.mark.slow
def test_a_picture_is_judged_by_its_own_classes(tmp_path: Path) -> None:
    reward = ready(tmp_path, against="picture")
    images = (smooth_images(32, 32) * 255).round() / 255
    with torch.no_grad():
        logits = UperNetForSemanticSegmentation.from_pretrained(tmp_path)(pixels(images)).logits
    found = reward.score(batch_of(images, images.flip(0), "image"))
    for number in range(4):
        expected = by_hand(logits[number], logits.flip(0)[number].argmax(0), first=0)
        assert float(found[number]) == pytest.approx(expected, abs=1e-4)
    offline = MaskConsistency(model=reward.model, against="given")
    offline.prepare(CPU)
    assert "target.given" in offline.needs and "prompt.image" not in offline.needs
    others = [{"given": pair, "given_scores": (1.0,)} for pair in shown(images.flip(0))]
    torch.testing.assert_close(offline.score(make_batch(Outputs(images=images), [""] * 4, others)), found)


@pytest.mark.slow
def test_what_cannot_be_judged_or_loaded_is_the_users_error(tmp_path: Path) -> None:
    reward = ready(tmp_path / "net")
    with pytest.raises(ValueError, match="no pixel of the 5 classes of the model; the number of the first is 1"):
        reward.score(batch_of(smooth_images(32, 32), torch.zeros(4, 3, 32, 32)))
    with pytest.raises(ConfigError, match="cannot load the segmentation network '/no/such"):
        MaskConsistency(model="/no/such").prepare(CPU)
    for text, message in (("[[1, 2]]", "must be a list of colours"), ("[", "cannot read the palette")):
        (tmp_path / "palette.json").write_text(text)
        with pytest.raises(ConfigError, match=message):
            MaskConsistency(model=reward.model, palette=tmp_path / "palette.json").prepare(CPU)


def test_prompts_and_settings_are_checked() -> None:
    media = shown(torch.zeros(1, 3, 8, 8))[0]
    with pytest.raises(ValueError, match="needs an image of the role 'control', and the row has image"):
        MaskConsistency().check(Prompt("", media, roles=("image",)))
    MaskConsistency().check(Prompt("", media, roles=("control",)))
    with pytest.raises(ValueError, match="needs a picture that the row brings as an output"):
        MaskConsistency(against="given").check(Prompt("", media, roles=("control",)))
    with pytest.raises(ValueError, match="palette is of maps, got x with against 'picture'"):
        MaskConsistency(against="picture", palette=Path("x"))
