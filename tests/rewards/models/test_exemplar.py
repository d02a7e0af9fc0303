"""Exemplars against cosines by numpy, of pictures, sounds and texts."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.base.networks.clip import load_clip
from mmrl.rewards.models.exemplar import Exemplar
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, random_images, to_pil
from tests.rewards.sounds import sounds


def random_batch(rng: random.Random) -> RewardBatch:
    return make_batch(Outputs(images=random_images(rng, 2 * GROUP)), [""] * 2 * GROUP)


# No truth: the twin's exemplars are random, and the mean cosine with several is below 1.
EXAMPLE = Example(random_batch=random_batch, settings={"exemplars": "/no/such"})


def ready(folder: Path, **settings: Any) -> Exemplar:
    reward = Exemplar(**({"exemplars": ""} | settings)).tiny(0, folder)
    reward.prepare(CPU)
    return reward


@pytest.mark.parametrize("reduction", ["mean", "max"])
def test_scores_of_pixels_by_hand(reduction: str, tmp_path: Path) -> None:
    pictures = random_images(random.Random(1), 9)
    for number, picture in enumerate(to_pil(pictures[:5])):
        picture.save(tmp_path / f"{number}.png")
    reward = Exemplar(exemplars=str(tmp_path), features="pixels", reduction=reduction)  # type: ignore[arg-type]
    reward.prepare(CPU)
    found = reward.score(make_batch(Outputs(images=pictures[3:]), [""] * 6))
    rows = pictures.double().numpy().reshape(9, -1).clip(1 / 255)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = rows[3:] @ rows[:5].T
    expected = cosines.mean(1) if reduction == "mean" else cosines.max(1)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
    if reduction == "max":
        assert found[:2].tolist() == pytest.approx([1, 1])  # two of the exemplars themselves


@pytest.mark.slow
def test_pictures_are_compared_with_texts(tmp_path: Path) -> None:
    reward = ready(tmp_path, exemplars="wanted.txt")
    pictures = random_images(random.Random(2), 4)
    found = reward.score(make_batch(Outputs(images=pictures), [""] * 4))
    clip = load_clip("transformers", str(reward.model), None, torch.device("cpu"))
    lines = Path(reward.exemplars).read_text().splitlines()
    expected = torch.stack([clip.cosines(pictures, [line] * 4) for line in lines]).mean(0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert len(lines) == 3 and float(found.std()) > 1e-4


@pytest.mark.slow
def test_sounds_are_compared_with_sounds_and_with_texts(tmp_path: Path) -> None:
    heard = make_batch(Outputs(audio=sounds(random.Random(3), 3, 120_000), audio_rate=(48_000,) * 3), [""] * 3)
    for place, source in (("sounds", ""), ("texts", "wanted.txt")):
        reward = ready(tmp_path / place, exemplars=source, features="clap")
        assert reward.needs == {"audio", "model"} and not reward.differentiable
        assert reward._embed is not None and reward._exemplars is not None
        found = reward.score(heard)
        for row, windows in enumerate(reward._embed(heard.outputs)):
            assert len(windows) == 2
            direction = windows.mean(0) / windows.mean(0).norm()
            expected = np.mean([float(one @ direction) for one in reward._exemplars])
            assert float(found[row]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_a_sound_that_is_an_exemplar_is_like_it(tmp_path: Path) -> None:
    from mmrl.media.mp4 import read_sound

    reward = ready(tmp_path, features="clap", reduction="max")
    sound = read_sound(sorted(Path(reward.exemplars).glob("*.wav"))[2])
    assert sound is not None and sound.rate == 48_000
    found = reward.score(make_batch(Outputs(audio=sound.samples[None], audio_rate=(sound.rate,)), [""]))
    assert float(found) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_texts_are_compared_with_texts(tmp_path: Path) -> None:
    reward = ready(tmp_path, exemplars="wanted.txt", features="text", reduction="max")
    found = reward.score(make_batch(Outputs(texts=("a red barn", "something else", " ")), [""] * 3))
    assert found.tolist() == pytest.approx([1, float(found[1]), -1], abs=1e-5) and float(found[1]) < 1


def test_what_cannot_be_an_exemplar_is_the_users_error(tmp_path: Path) -> None:
    for features in ("dino", "pixels"):
        with pytest.raises(ValueError, match=f"{features} embeds images, not texts; clip embeds both"):
            Exemplar(exemplars="wanted.txt", features=features)
    with pytest.raises(ConfigError, match=r"exemplars must be a folder of \.png"):
        Exemplar(exemplars="/no/such", features="pixels").prepare(CPU)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(ConfigError, match=r"cannot read the image broken\.png"):
        Exemplar(exemplars=str(tmp_path), features="pixels").prepare(CPU)
    with pytest.raises(ConfigError, match="cannot load the CLIP '/no/such"):
        Exemplar(exemplars="", model="/no/such").prepare(CPU)


@pytest.mark.slow
def test_files_of_texts_are_checked(tmp_path: Path) -> None:
    reward = ready(tmp_path, exemplars="wanted.txt")
    (tmp_path / "empty.txt").write_text(" \n\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    for name, said in (("none", "which is no file"), ("empty", "has no text"), ("latin", "is no text in UTF-8")):
        with pytest.raises(ConfigError, match=said):
            replace(reward, exemplars=str(tmp_path / f"{name}.txt")).prepare(CPU)
