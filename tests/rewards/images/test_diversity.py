"""Diversity against a loop over pairs."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.images.diversity import Diversity
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, random_images


def random_batch(rng: random.Random) -> RewardBatch:
    """A group of different images, and one in which all but one are the same."""
    images = random_images(rng, 2 * GROUP)
    images[GROUP + 1 :] = images[GROUP + 1]
    return make_batch(Outputs(images=images), [""] * 2 * GROUP)


EXAMPLE = Example(random_batch=random_batch)  # no truth: how different images should be is not known


def ready(folder: Path, **settings: Any) -> Diversity:
    reward = Diversity(**settings).tiny(0, folder)
    reward.prepare(CPU)
    return reward


def with_embeddings(reward: Diversity, embeddings: list[list[float]], group: list[int]) -> Tensor:
    """Scores of samples with these embeddings of length 1."""
    reward._embed = lambda images: torch.tensor(embeddings)
    batch = make_batch(Outputs(images=torch.zeros(len(group), 3, 2, 2)), [""] * len(group))
    return reward.score(replace(batch, group=torch.tensor(group)))


def test_scores_by_hand() -> None:
    right, left, up, slanted = [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.6, 0.8]
    # group 7: right, up, left; cosines 0, -1 | 0, 0 | -1, 0. Group 3: right, slanted: 0.6. Group 5: two alike.
    embeddings, group = [right, right, up, slanted, left, up, up], [7, 3, 7, 3, 7, 5, 5]
    found = with_embeddings(Diversity(), embeddings, group)
    torch.testing.assert_close(found, torch.tensor([1.5, 0.4, 1.0, 0.4, 1.5, 0.0, 0.0]))
    shared = with_embeddings(Diversity(share="group"), embeddings, group)
    torch.testing.assert_close(shared, torch.tensor([4 / 3, 0.4, 4 / 3, 0.4, 4 / 3, 0.0, 0.0]))
    torch.testing.assert_close(with_embeddings(Diversity(), [right, left], [0, 0]), torch.tensor([2.0, 2.0]))


@pytest.mark.parametrize("encoder", ["dino", "clip"])
@pytest.mark.parametrize("share", ["member", "group"])
def test_the_mean_of_a_group_is_one_minus_the_mean_cosine_of_its_pairs(
    share: str, encoder: str, tmp_path: Path
) -> None:
    reward = ready(tmp_path, share=share, encoder=encoder)
    images = random_images(random.Random(1), 10)
    batch = make_batch(Outputs(images=images), [""] * 10, group_size=5)
    found = reward.score(batch)
    assert reward._embed is not None
    rows = reward._embed(images)
    for start in (0, 5):
        pairs = [float(rows[i] @ rows[j]) for i in range(start, start + 5) for j in range(start, i)]
        assert float(found[start : start + 5].mean()) == pytest.approx(1 - sum(pairs) / 10, abs=1e-5)
    assert (found[:5].std() > 0.01) == (share == "member")


def test_the_same_images_have_no_diversity(tmp_path: Path) -> None:
    images = random_images(random.Random(1), 1).expand(4, -1, -1, -1)
    found = ready(tmp_path).score(make_batch(Outputs(images=images), [""] * 4))
    assert found.min() >= 0 and found.max() < 1e-5


def test_a_group_of_one_cannot_be_judged(tmp_path: Path) -> None:
    batch = make_batch(Outputs(images=torch.rand(3, 3, 32, 32)), [""] * 3, group_size=2)
    with pytest.raises(ValueError, match="a group of one image has no diversity"):
        ready(tmp_path).score(batch)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="encoder must be one of dino, clip, got 'vgg'"):
        Diversity(encoder="vgg")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="share must be one of member, group"):
        Diversity(share="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot load the CLIP '/no/such"):
        Diversity(encoder="clip", model="/no/such").prepare(CPU)
