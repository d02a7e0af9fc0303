"""The Vendi score against the published package, sets whose score is known, and a plain loop."""

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.core.plugins import build
from mmrl.rewards.models.vendi import Vendi, vendi_score
from tests.parameters import in_one_test
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, random_images
from tests.rewards.sounds import sounds

VECTORS = torch.tensor([[1.0, 0, 0], [3, 4, 0], [0, 1, 1], [-1, 2, 2], [2, 0, 1]])
# The scores of all five and of the five sets of four without one, by score_K(K, q) of vendi-score 0.0.3 with
# K = X X^T of the rows of VECTORS at length 1.
PUBLISHED = {
    0.5: (2.673191, 2.677371, 2.305384, 2.672992, 2.637977, 2.52422),
    1.0: (2.474241, 2.442372, 2.12294, 2.444842, 2.376963, 2.292282),
    2.0: (2.281392, 2.157497, 2.051282, 2.179705, 2.068252, 2.110199),
    math.inf: (1.910768, 1.653432, 2.0, 1.688988, 1.583596, 1.76194),
}


def random_batch(rng: random.Random) -> RewardBatch:
    """A group of different images, and one in which all but one are the same."""
    images = random_images(rng, 2 * GROUP)
    images[GROUP + 1 :] = images[GROUP + 1]
    return make_batch(Outputs(images=images), [""] * 2 * GROUP)


EXAMPLE = Example(random_batch=random_batch)  # no truth: how different samples should be is not known


def with_embeddings(reward: Vendi, embeddings: list[Tensor], group: list[int]) -> Tensor:
    """Scores of samples with these embeddings [n, D], n of each sample."""
    reward._embed = lambda outputs: embeddings
    batch = make_batch(Outputs(images=torch.zeros(len(group), 3, 2, 2)), [""] * len(group))
    return reward.score(replace(batch, group=torch.tensor(group)))


def rows_of(vectors: Tensor) -> list[Tensor]:
    return list(torch.nn.functional.normalize(vectors, dim=1).split(1))


@pytest.mark.parametrize("order", list(PUBLISHED))
def test_scores_and_credits_are_those_of_the_published_package(order: float) -> None:
    whole, *without = PUBLISHED[order]
    found = with_embeddings(Vendi(order=order), rows_of(VECTORS), [0] * 5)
    torch.testing.assert_close(found, torch.tensor([whole - one for one in without]), rtol=0, atol=2e-6)
    shared = with_embeddings(Vendi(order=order, credit="group"), rows_of(VECTORS), [0] * 5)
    torch.testing.assert_close(shared, torch.full((5,), whole), rtol=0, atol=2e-6)


@in_one_test("order", [0.0, 0.5, 1.0, 2.0, 1000.0, math.inf])
def test_sets_whose_score_is_known(order: float) -> None:
    alike, apart = torch.ones(6, 6).double(), torch.eye(6).double()
    assert float(vendi_score(alike, order)) == pytest.approx(1)
    assert float(vendi_score(apart, order)) == pytest.approx(6)
    halves = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)).double()
    assert float(vendi_score(halves, order)) == pytest.approx(2)
    assert float(vendi_score(torch.zeros(0, 0), order)) == 0


def test_orders_by_hand() -> None:
    """Three alike and one apart: eigenvalues over 4 are 3/4 and 1/4."""
    cosines = torch.block_diag(torch.ones(3, 3), torch.ones(1, 1)).double()
    by_hand = {
        0.0: 2,
        0.5: (math.sqrt(0.75) + math.sqrt(0.25)) ** 2,
        1.0: math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)),
        2.0: 1 / (0.75**2 + 0.25**2),
        math.inf: 4 / 3,
    }
    for order, expected in by_hand.items():
        assert float(vendi_score(cosines, order)) == pytest.approx(expected)
    near = float(vendi_score(cosines, 1.001))
    assert near == pytest.approx(by_hand[1.0], rel=1e-3) and near < by_hand[1.0]


@in_one_test("order", [0.3, 1.0, 2.0, math.inf])
def test_a_sample_adds_at_most_one(order: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for count in range(2, 12):
        few = torch.randn(count, 3, generator=generator)
        found = with_embeddings(Vendi(order=order), rows_of(few), [0] * count)
        assert float(found.max()) <= 1 + 1e-5
    apart = with_embeddings(Vendi(order=order), rows_of(torch.eye(7)), [0] * 7)
    torch.testing.assert_close(apart, torch.ones(7))


def test_a_config_says_the_infinite_order_as_null() -> None:
    """JSON and the checks of configs know no infinity."""
    reward = build("rewards", {"name": "vendi", "order": None})
    found = with_embeddings(reward, rows_of(VECTORS), [0] * 5)
    torch.testing.assert_close(found, with_embeddings(Vendi(order=math.inf), rows_of(VECTORS), [0] * 5))


def test_a_copy_costs_and_a_new_kind_pays() -> None:
    kinds = torch.eye(4)[[0, 0, 0, 1, 2]]
    found = with_embeddings(Vendi(), rows_of(kinds), [7] * 5)
    assert float(found[0]) < 0 < float(found[3])
    torch.testing.assert_close(found[0].expand(3), found[:3])


def test_groups_are_sets_of_their_own_and_controls_no_part_of_them() -> None:
    group = [3, 8, 3, 8, 3]
    apart = with_embeddings(Vendi(), rows_of(VECTORS), group)
    alone = with_embeddings(Vendi(), rows_of(VECTORS[[0, 2, 4]]), [0, 0, 0])
    torch.testing.assert_close(apart[[0, 2, 4]], alone)
    reward = Vendi()
    reward._embed = lambda outputs: rows_of(VECTORS)
    batch = make_batch(Outputs(images=torch.zeros(5, 3, 2, 2)), [""] * 5, group_size=5)
    controlled = reward.score(replace(batch, is_control=torch.tensor([False, True, False, True, False])))
    torch.testing.assert_close(
        controlled, torch.stack([alone[0], *torch.zeros(1), alone[1], *torch.zeros(1), alone[2]])
    )


def test_a_sample_alone_adds_one() -> None:
    assert with_embeddings(Vendi(), rows_of(VECTORS), [0, 1, 2, 3, 4]).tolist() == pytest.approx([1] * 5)


def test_a_sound_of_several_windows_is_their_mean_direction() -> None:
    right, up, slanted = torch.tensor([[1.0, 0]]), torch.tensor([[0, 1.0]]), torch.tensor([[0.5**0.5, 0.5**0.5]])
    windows = with_embeddings(Vendi(), [torch.cat([right, up]), right], [0, 0])
    torch.testing.assert_close(windows, with_embeddings(Vendi(), [slanted, right], [0, 0]))


def test_what_cannot_be_embedded_scores_no_more_than_any_other() -> None:
    nothing = torch.zeros(0, 3)
    found = with_embeddings(Vendi(), [*rows_of(torch.eye(3)[[0, 0, 0, 1, 2]]), nothing], [0] * 6)
    assert float(found[5]) == float(found.min()) < 0
    found = with_embeddings(Vendi(), [*rows_of(torch.eye(3)), nothing, nothing], [0, 0, 0, 0, 1])
    assert found.tolist() == pytest.approx([1, 1, 1, 0, 0])


def test_pixels_are_compared_as_they_are() -> None:
    images = random_images(random.Random(1), 6, side=48)
    images[0] = 0
    found = Vendi(features="pixels").score(make_batch(Outputs(images=images), [""] * 6, group_size=6))
    # 48 to 32: places of one or two pixels each way, as adaptive pooling cuts them
    edges = [(place * 48 // 32, -(-(place + 1) * 48 // 32)) for place in range(32)]
    pixels = images.double().numpy()
    rows = np.array([[pixels[i, :, a:b, c:d].mean((1, 2)) for a, b in edges for c, d in edges] for i in range(6)])
    rows = rows.transpose(0, 2, 1).reshape(6, -1).clip(1 / 255)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)

    def score(kept: list[int]) -> float:
        shares = np.linalg.eigvalsh(rows[kept] @ rows[kept].T / len(kept))
        return math.exp(-sum(share * math.log(share) for share in shares if share > 1e-9))

    expected = [score(list(range(6))) - score([j for j in range(6) if j != i]) for i in range(6)]
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-5)


@pytest.mark.slow
def test_sounds_and_texts_have_scores(tmp_path: Path) -> None:
    heard = sounds(random.Random(1), 4, 120_000)  # two windows of the twin each
    heard[3] = heard[2]
    reward = Vendi(features="clap").tiny(0, tmp_path / "clap")
    reward.prepare(CPU)
    assert reward.needs == {"audio", "model"}
    found = reward.score(make_batch(Outputs(audio=heard, audio_rate=(48_000,) * 4), [""] * 4))
    assert float(found[2]) == pytest.approx(float(found[3]), abs=1e-5) and float(found[:2].min()) > float(found[2])

    words = Vendi(features="text").tiny(0, tmp_path / "text")
    words.prepare(CPU)
    assert words.needs == {"texts", "model"}
    texts = ("a red hat", "far thunder over hills", "a red hat", " ")
    found = words.score(make_batch(Outputs(texts=texts), [""] * 4))
    assert float(found[0]) == pytest.approx(float(found[2]), abs=1e-5) and float(found[1]) > float(found[0])
    assert float(found[3]) == float(found.min().clamp(max=0))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="features must be one of dino, clip, pixels, clap, text, got 'vgg'"):
        Vendi(features="vgg")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="order must be at least 0, or null, got -1"):
        Vendi(order=-1)
    assert Vendi(features="pixels").needs == {"images"} and Vendi().needs == {"images", "model"}
    with pytest.raises(ConfigError, match="cannot load the DINO '/no/such"):
        Vendi(model="/no/such").prepare(CPU)


SETS = [{"name": "vendi"}, {"name": "exemplar", "exemplars": ""}, {"name": "frechet", "reference": ""}]


@in_one_test("settings", SETS)
def test_a_model_that_nothing_would_load_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="pixels are embedded without a model, got 'facebook/dinov2-base'"):
        build("rewards", settings | {"features": "pixels", "model": "facebook/dinov2-base"})
