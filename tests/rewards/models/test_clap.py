"""CLAP against transformers' own forward pass, sines at known rates, and windows by hand."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import ClapFeatureExtractor, ClapModel, PreTrainedTokenizerFast

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.base.networks.clap import resampled, windows_of
from mmrl.rewards.models.clap import Clap
from tests.parameters import in_one_test
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, random_texts
from tests.rewards.sounds import sounds

TEXTS = ["a dog barks", "rain on a roof, far thunder", "a dog barks", "naïve café 🙂"]
RATES = (16_000, 24_000, 44_100, 48_000)


def batch_of(sounds: Tensor, rates: tuple[int, ...] | None, texts: list[str]) -> RewardBatch:
    return make_batch(Outputs(audio=sounds, audio_rate=rates), texts)


def random_batch(source: random.Random) -> RewardBatch:
    count = 2 * GROUP
    rates = tuple(source.choice(RATES) for _ in range(count))
    return batch_of(sounds(source, count, source.randrange(500, 50_000)), rates, random_texts(source, count))


# No truth: which sound fits a text best is what the model was trained to say.
EXAMPLE = Example(random_batch=random_batch)


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Clap:
    made = Clap().tiny(0, tmp_path_factory.mktemp("clap"))
    made.prepare(CPU)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("samples", [2_000, 40_000, 96_000])  # a window has 96,000
def test_the_score_is_the_cosine_that_transformers_gives(samples: int, reward: Clap) -> None:
    heard = sounds(random.Random(1), 4, samples)
    found = reward.score(batch_of(heard, (48_000,) * 4, TEXTS))

    model = ClapModel.from_pretrained(reward.model)
    extractor = ClapFeatureExtractor.from_pretrained(reward.model)
    tokens = PreTrainedTokenizerFast.from_pretrained(reward.model)(TEXTS, padding=True, return_tensors="pt")
    mono = [sound.mean(0).numpy() for sound in heard]
    features = extractor(mono, sampling_rate=48_000, return_tensors="pt")["input_features"].float()
    with torch.no_grad():
        made = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"], input_features=features)
        expected = made.logits_per_audio.diagonal() / model.logit_scale_a.exp()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert found.std() > 1e-3


@pytest.mark.slow
def test_a_long_sound_is_the_mean_over_windows_that_cover_it(reward: Clap) -> None:
    heard = sounds(random.Random(2), 1, 250_000)
    found = reward.score(batch_of(heard, (48_000,), TEXTS[:1]))
    starts = (0, 77_000, 154_000)  # three windows of 96,000, evenly placed
    parts = torch.cat([heard[..., start : start + 96_000] for start in starts])
    alone = reward.score(batch_of(parts, (48_000,) * 3, TEXTS[:1] * 3))
    torch.testing.assert_close(found, alone.mean(0, keepdim=True), rtol=0, atol=1e-5)
    assert alone.std() > 1e-4


@in_one_test(
    ("samples", "starts"),
    [(1, [0]), (10, [0]), (11, [0, 1]), (20, [0, 10]), (21, [0, 6, 11]), (25, [0, 8, 15]), (40, [0, 10, 20, 30])],
)
def test_windows_by_hand(samples: int, starts: list[int]) -> None:
    windows = windows_of(np.arange(samples), 10)
    assert [int(window[0]) for window in windows] == starts
    assert all(len(window) == min(10, samples) for window in windows)
    assert set(np.concatenate(windows)) == set(range(samples))


@pytest.mark.slow
@in_one_test("rate", [8_000, 16_000, 24_000, 44_100, 48_000, 96_000])
def test_a_tone_keeps_its_pitch_and_its_length(rate: int) -> None:
    tone = torch.sin(2 * math.pi * 440 * torch.arange(rate) / rate)
    found = resampled(tone, rate, 48_000)
    expected = np.sin(2 * np.pi * 440 * np.arange(48_000) / 48_000)
    assert len(found) == 48_000
    inside = slice(2_000, -2_000)  # filters see silence before the sound and behind it
    np.testing.assert_allclose(found[inside], expected[inside], atol=5e-3)


@pytest.mark.slow
def test_the_same_sound_at_another_rate_scores_nearly_the_same(reward: Clap) -> None:
    times = torch.arange(24_000) / 24_000
    tone = 0.5 * torch.sin(2 * math.pi * 440 * times) + 0.3 * torch.sin(2 * math.pi * 1200 * times)
    slow, fast = tone[::2][None, None], tone[None, None]
    first = reward.score(batch_of(slow, (12_000,), TEXTS[:1]))
    second = reward.score(batch_of(fast, (24_000,), TEXTS[:1]))
    other = reward.score(batch_of(fast, (12_000,), TEXTS[:1]))  # another pitch
    assert abs(first - second) < abs(first - other)


@pytest.mark.slow
def test_a_text_is_cut_at_the_context(reward: Clap) -> None:
    heard = sounds(random.Random(3), 2, 4_000)
    texts = ["a" * 62, "a" * 200]  # 64 tokens with both marks
    found = reward.score(batch_of(heard[:1].repeat(2, 1, 1), (48_000,) * 2, texts))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_sounds_that_cannot_be_judged(reward: Clap) -> None:
    heard = sounds(random.Random(4), 1, 100)
    with pytest.raises(ValueError, match="needs the samples a second of every sound, got None"):
        reward.score(batch_of(heard, None, [""]))
    with pytest.raises(ValueError, match=r"needs the samples a second of every sound, got \(0,\)"):
        reward.score(batch_of(heard, (0,), [""]))
    with pytest.raises(ValueError, match=r"finite samples .* got the shape \(1, 2, 0\)"):
        reward.score(batch_of(heard[..., :0], (48_000,), [""]))
    with pytest.raises(ValueError, match="finite samples"):
        reward.score(batch_of(heard * math.nan, (48_000,), [""]))


@pytest.mark.slow
def test_models_that_cannot_be_used_are_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot load the CLAP '/no/such"):
        Clap(model="/no/such").prepare(CPU)
    fused = Clap().tiny(0, tmp_path)
    sizes = json.loads((tmp_path / "config.json").read_text())
    sizes["audio_config"]["enable_fusion"] = True
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    with pytest.raises(ConfigError, match="fuses random parts of a sound"):
        fused.prepare(CPU)
