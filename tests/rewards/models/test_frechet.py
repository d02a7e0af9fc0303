"""Frechet distances against scipy's root of a matrix, torchmetrics, and sets by hand."""

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch import Tensor
from torchmetrics.image.fid import _compute_fid

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.base.frechet_distance import Covariance, FrechetSet, Moments, leave_one_out
from mmrl.rewards.models.frechet import Frechet
from tests.parameters import in_one_test
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, random_images, to_pil
from tests.rewards.sounds import sounds


def random_batch(rng: random.Random) -> RewardBatch:
    return make_batch(Outputs(images=random_images(rng, 2 * GROUP)), [""] * 2 * GROUP)


# No truth: what a sample changes depends on the others of its group.
EXAMPLE = Example(random_batch=random_batch, settings={"reference": "/no/such"})


def normal(seed: int, count: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=generator, dtype=torch.float64)
    return torch.randn(count, width, generator=generator, dtype=torch.float64) @ mixing + seed


def by_scipy(embeddings: Tensor, reference: Moments) -> float:
    """The formula as it stands in the paper, with the root of a matrix [D, D]."""
    mean, covariance = embeddings.numpy().mean(0), np.cov(embeddings.numpy(), rowvar=False)
    other = reference.covariance.numpy()
    root = np.real(sqrtm(covariance @ other))
    return float(((mean - reference.mean.numpy()) ** 2).sum() + np.trace(covariance + other - 2 * root))


def every(embeddings: Tensor) -> Tensor:
    return torch.arange(len(embeddings))


@in_one_test(("count", "width"), [(60, 5), (9, 8), (40, 12)])
def test_many_samples_are_as_far_as_scipy_and_torchmetrics_say(count: int, width: int) -> None:
    embeddings, reference = normal(1, count, width), Moments.of(normal(2, 50, width))
    found = float(FrechetSet(embeddings, reference, "full").distance(every(embeddings)))
    own = Moments.of(embeddings)
    theirs = _compute_fid(own.mean, own.covariance, reference.mean, reference.covariance)
    assert found == pytest.approx(float(theirs), rel=1e-6)
    assert found == pytest.approx(by_scipy(embeddings, reference), rel=1e-6)


def test_few_samples_in_many_dimensions() -> None:
    """scipy's root of a singular matrix is good to a few digits; a tiny ridge on the smaller side shows its limit."""
    embeddings, reference = normal(1, 4, 30), Moments.of(normal(2, 200, 30))
    found = float(FrechetSet(embeddings, reference, "full").distance(every(embeddings)))
    mean = embeddings.numpy().mean(0)
    covariance = np.cov(embeddings.numpy(), rowvar=False) + 1e-12 * np.eye(30)
    half = np.real(sqrtm(reference.covariance.numpy()))  # of a matrix of full rank, which is safe
    roots = np.sqrt(np.linalg.eigvalsh(half @ covariance @ half).clip(0)).sum()
    away = ((mean - reference.mean.numpy()) ** 2).sum()
    expected = away + np.trace(covariance) + float(reference.covariance.trace()) - 2 * roots
    assert found == pytest.approx(float(expected), rel=1e-6)


def test_a_set_is_at_no_distance_from_itself() -> None:
    for count in (3, 40):
        embeddings = normal(3, count, 6)
        for covariance in ("full", "diagonal", "none"):
            own = FrechetSet(embeddings, Moments.of(embeddings), covariance)
            assert abs(float(own.distance(every(embeddings)))) < 1e-5  # traces of 50, whose roots of 0 round


def test_distances_by_hand() -> None:
    """1 and 3 have the mean 2 and the variance 2; the reference the mean 0 and the variance 8."""
    embeddings, reference = (
        torch.tensor([[1.0], [3.0]]),
        Moments(torch.zeros(1).double(), torch.full((1, 1), 8.0).double()),
    )
    for kind, expected in (
        ("full", 4 + 2 + 8 - 2 * 4),
        ("diagonal", 4 + (math.sqrt(2) - math.sqrt(8)) ** 2),
        ("none", 4),
    ):
        distances = FrechetSet(embeddings, reference, kind)  # type: ignore[arg-type]
        assert float(distances.distance(torch.tensor([0, 1]))) == pytest.approx(expected)
        assert float(distances.distance(torch.tensor([1]))) == pytest.approx(9 + (0 if kind == "none" else 8))
        found = leave_one_out([embeddings[:1], embeddings[1:]], reference, kind)  # type: ignore[arg-type]
        alone = 0 if kind == "none" else 8
        assert found.tolist() == pytest.approx([9 + alone - expected, 1 + alone - expected])


@in_one_test("covariance", ["full", "diagonal", "none"])
def test_leaving_out_is_the_distance_of_the_others(covariance: Covariance) -> None:
    reference = Moments.of(normal(2, 50, 5))
    members = list(normal(1, 9, 5).split([1, 3, 1, 2, 2]))

    def distance(parts: list[Tensor]) -> float:
        values = torch.cat(parts)
        away = float((values.mean(0) - reference.mean).square().sum())
        if covariance == "none":
            return away
        if covariance == "full":
            return by_scipy(values, reference)
        spread = np.sqrt(np.var(values.numpy(), axis=0, ddof=1)) - reference.covariance.diagonal().sqrt().numpy()
        return away + float((spread**2).sum())

    expected = [distance(members[:i] + members[i + 1 :]) - distance(members) for i in range(5)]
    assert leave_one_out(members, reference, covariance).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def ready(folder: Path, **settings: object) -> Frechet:
    reward = Frechet(reference="", **settings).tiny(0, folder)  # type: ignore[arg-type]
    reward.prepare(CPU)
    return reward


def with_embeddings(reward: Frechet, embeddings: list[Tensor], reference: Moments, group: list[int]) -> Tensor:
    reward._embed, reward._moments = lambda outputs: embeddings, reference
    batch = make_batch(Outputs(images=torch.zeros(len(group), 3, 2, 2)), [""] * len(group))
    return reward.score(replace(batch, group=torch.tensor(group)))


def test_credits_of_groups() -> None:
    embeddings, reference = normal(1, 7, 5), Moments.of(normal(2, 50, 5))
    rows, group = list(embeddings.split(1)), [4, 9, 4, 4, 9, 9, 4]
    first, second = [0, 2, 3, 6], [1, 4, 5]
    shared = with_embeddings(Frechet(reference="", credit="group", covariance="none"), rows, reference, group)
    for members in (first, second):
        away = float((embeddings[members].mean(0) - reference.mean).square().sum())
        assert shared[members].tolist() == pytest.approx([-away] * len(members))
    own = with_embeddings(Frechet(reference="", credit="own"), rows, reference, group)
    alone = (embeddings - reference.mean).square().sum(1) + reference.covariance.trace()
    torch.testing.assert_close(own, -alone.float())
    left = with_embeddings(Frechet(reference=""), rows, reference, group)
    torch.testing.assert_close(left[first], leave_one_out([rows[i] for i in first], reference, "full").float())
    nothing = [*rows, torch.zeros(0, 5), torch.zeros(0, 5)]
    padded = with_embeddings(Frechet(reference=""), nothing, reference, [*group, 4, 1])
    torch.testing.assert_close(padded[:7], left)
    assert float(padded[7]) == pytest.approx(min(0.0, float(left[first].min()))) and float(padded[8]) == -8


def test_a_sample_that_is_like_the_reference_pays() -> None:
    reference = Moments.of(normal(2, 400, 5))
    strange = normal(2, 6, 5)
    strange[5] += 50
    found = with_embeddings(Frechet(reference="", covariance="diagonal"), list(strange.split(1)), reference, [0] * 6)
    assert int(found.argmin()) == 5 and float(found[5]) < 0


def test_controls_are_no_part_of_the_set() -> None:
    rows, reference = list(normal(1, 5, 4).split(1)), Moments.of(normal(2, 50, 4))
    reward = Frechet(reference="")
    reward._embed, reward._moments = lambda outputs: rows, reference
    batch = make_batch(Outputs(images=torch.zeros(5, 3, 2, 2)), [""] * 5, group_size=5)
    found = reward.score(replace(batch, is_control=torch.tensor([False, True, False, False, True])))
    expected = leave_one_out([rows[0], rows[2], rows[3]], reference, "full").float()
    torch.testing.assert_close(found[[0, 2, 3]], expected)
    assert found[[1, 4]].tolist() == [0, 0]


@pytest.mark.slow
def test_a_folder_and_its_statistics_are_the_same_reference(tmp_path: Path) -> None:
    reward = ready(tmp_path / "twin")
    folder = tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    pictures = random_images(random.Random(5), 7)
    for number, picture in enumerate(to_pil(pictures)):
        picture.save(folder / ("deep" if number % 2 else "") / f"{number}.png")
    of_folder = replace(reward, reference=str(folder))
    of_folder.prepare(CPU)
    assert of_folder._embed is not None and of_folder._moments is not None
    embeddings = torch.cat(of_folder._embed(Outputs(images=pictures))).double()
    torch.testing.assert_close(of_folder._moments.mean, embeddings.mean(0), rtol=0, atol=1e-6)
    torch.testing.assert_close(of_folder._moments.covariance, torch.cov(embeddings.T), rtol=0, atol=1e-6)
    of_folder._moments.save(tmp_path / "statistics.npz")
    of_file = replace(reward, reference=str(tmp_path / "statistics.npz"))
    of_file.prepare(CPU)
    batch = random_batch(random.Random(2))
    torch.testing.assert_close(of_file.score(batch), of_folder.score(batch), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_song_is_the_set_of_its_windows(tmp_path: Path) -> None:
    reward = ready(tmp_path, features="clap", credit="own")
    assert reward.needs == {"audio", "model"} and reward.range == (-math.inf, 0)
    heard = sounds(random.Random(1), 2, 250_000)  # three windows of the twin each
    found = reward.score(make_batch(Outputs(audio=heard, audio_rate=(48_000,) * 2), [""] * 2))
    assert reward._embed is not None and reward._moments is not None
    parts = reward._embed(Outputs(audio=heard, audio_rate=(48_000,) * 2))
    assert [len(part) for part in parts] == [3, 3]
    expected = [-by_scipy(part.double(), reward._moments) for part in parts]
    assert found.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_texts_have_a_reference_too(tmp_path: Path) -> None:
    reward = ready(tmp_path, features="text", covariance="diagonal")
    found = reward.score(make_batch(Outputs(texts=("a red hat", "rain on a roof", "a slow waltz", "")), [""] * 4))
    assert found.isfinite().all() and float(found[3]) == float(found.min().clamp(max=0))


def test_settings_and_references_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="covariance must be one of full, diagonal, none, got 'half'"):
        Frechet(reference="", covariance="half")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"reference must be a folder of \.png.*'/no/such', which is no folder"):
        Frechet(reference="/no/such", features="pixels").prepare(CPU)
    with pytest.raises(ConfigError, match=r"has no \.png"):
        Frechet(reference=str(tmp_path), features="pixels").prepare(CPU)
    to_pil(torch.zeros(1, 3, 4, 4))[0].save(tmp_path / "one.png")
    with pytest.raises(ConfigError, match="two examples at least"):
        Frechet(reference=str(tmp_path), features="pixels").prepare(CPU)
    np.savez(tmp_path / "wrong.npz", mu=np.zeros(3))
    with pytest.raises(ConfigError, match=r"cannot read statistics from wrong.npz: .*sigma"):
        Frechet(reference=str(tmp_path / "wrong.npz"), features="pixels").prepare(CPU)
    np.savez(tmp_path / "sizes.npz", mu=np.zeros(3), sigma=np.eye(4))
    with pytest.raises(ConfigError, match=r"sigma \[D, D\], got \(3,\) and \(4, 4\)"):
        Frechet(reference=str(tmp_path / "sizes.npz"), features="pixels").prepare(CPU)
    np.savez(tmp_path / "skew.npz", mu=np.zeros(2), sigma=np.array([[1.0, 1.0], [0.0, 1.0]]))
    with pytest.raises(ConfigError, match="sigma symmetric"):
        Frechet(reference=str(tmp_path / "skew.npz"), features="pixels").prepare(CPU)
    np.savez(tmp_path / "other.npz", mu=np.zeros(3), sigma=np.eye(3))
    other = Frechet(reference=str(tmp_path / "other.npz"), features="pixels")
    other.prepare(CPU)
    batch = make_batch(Outputs(images=torch.rand(2, 3, 8, 8)), [""] * 2)
    with pytest.raises(ValueError, match="the reference has 3 numbers an embedding, the encoder makes 3072"):
        other.score(batch)
    with pytest.raises(ValueError, match="a group of one sample"):
        with_embeddings(Frechet(reference=""), [torch.zeros(1, 2)], Moments.of(normal(1, 9, 2)), [0])
