"""ImageBind: published names and shapes, a plain functional forward pass, Kaldi's formulas in a loop, clips by hand."""

import math
import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import conv2d, conv3d, layer_norm, normalize

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.base.networks.imagebind import (
    HUGE,
    KINDS,
    ImageBindNetwork,
    Kind,
    clip_starts,
    load_imagebind,
    sound_clips,
    video_clips,
    write_tiny_imagebind,
)
from mmrl.rewards.base.networks.kaldi_fbank import kaldi_fbank
from mmrl.rewards.models.imagebind import Compare, Imagebind
from tests.parameters import in_one_test
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, random_texts
from tests.rewards.sounds import sounds

RATES = (16_000, 24_000, 48_000)
HEADS = (2, 2, 2)  # of the twin
MEAN, STD = torch.tensor([0.48145466, 0.4578275, 0.40821073]), torch.tensor([0.26862954, 0.26130258, 0.27577711])


def batch_of(outputs: Outputs, texts: list[str]) -> RewardBatch:
    """A batch whose sounds, where there are some without a rate, have 16,000 samples a second."""
    rates = None if outputs.audio is None else outputs.audio_rate or (16_000,) * len(outputs.audio)
    return make_batch(replace(outputs, audio_rate=rates), texts)


def random_batch(source: random.Random) -> RewardBatch:
    count = 2 * GROUP
    heard = sounds(source, count, source.randrange(300, 60_000))
    rates = tuple(source.choice(RATES) for _ in range(count))
    return make_batch(Outputs(audio=heard, audio_rate=rates), random_texts(source, count))


# No truth: which sound fits a text best is what the model was trained to say.
EXAMPLE = Example(random_batch=random_batch)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Imagebind:
    return Imagebind().tiny(0, tmp_path_factory.mktemp("imagebind"))


@pytest.mark.slow
def test_names_and_shapes_are_those_of_imagebind_huge() -> None:
    with torch.device("meta"):
        state = ImageBindNetwork(HUGE).state_dict()
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    # three of a stem, two of the first norm, twelve of a block, three of a head; sounds: five, fourteen, a temperature
    kinds = Counter(name.split(".")[1] for name in shapes)
    assert kinds == {"vision": 3 + 2 + 32 * 12 + 3, "text": 3 + 24 * 12 + 3 + 1, "audio": 5 + 12 * 14 + 3 + 1}
    numbers = sum(math.prod(shape) for shape in shapes.values())
    blocks = sum(count * (12 * width**2 + 13 * width) for width, count in ((1280, 32), (1024, 24), (768, 12)))
    stems = 1280 * (1176 + 258 + 2) + 1024 * (49_408 + 77) + 77**2 + 768 * (256 + 230 + 2)
    heads = sum(1024 * width + 2 * width for width in (1280, 1024, 768))
    assert numbers == blocks + 12 * 2 * 768 + stems + heads + 2
    sample = {
        "modality_preprocessors.vision.cls_token": (1, 1, 1280),
        "modality_preprocessors.vision.rgbt_stem.proj.1.weight": (1280, 3, 2, 14, 14),
        "modality_preprocessors.vision.pos_embedding_helper.pos_embed": (1, 257, 1280),
        "modality_preprocessors.text.pos_embed": (1, 77, 1024),
        "modality_preprocessors.text.mask": (77, 77),
        "modality_preprocessors.text.token_embedding.weight": (49_408, 1024),
        "modality_preprocessors.audio.rgbt_stem.proj.weight": (768, 1, 16, 16),
        "modality_preprocessors.audio.rgbt_stem.norm_layer.bias": (768,),
        "modality_preprocessors.audio.pos_embedding_helper.pos_embed": (1, 229, 768),
        "modality_trunks.vision.pre_transformer_layer.0.weight": (1280,),
        "modality_trunks.vision.blocks.31.attn.in_proj_weight": (3840, 1280),
        "modality_trunks.text.blocks.23.mlp.fc1.weight": (4096, 1024),
        "modality_trunks.audio.blocks.0.attn.bias_k": (1, 1, 768),
        "modality_trunks.audio.blocks.11.attn.out_proj.bias": (768,),
        "modality_heads.vision.2.weight": (1024, 1280),
        "modality_heads.text.proj.1.weight": (1024, 1024),
        "modality_heads.audio.0.weight": (768,),
        "modality_postprocessors.text.1.log_logit_scale": (),
        "modality_postprocessors.audio.1.log_logit_scale": (),
    }
    assert {name: shapes.get(name) for name in sample} == sample
    assert not any("text.pre_" in name or "text.blocks.0.attn.bias_k" in name for name in shapes)


def plain_forward(weights: dict[str, Tensor], kind: Kind, media: Tensor, num_heads: int) -> Tensor:
    """The published forward pass of one medium, [D], with a loop over heads and places."""
    own = {name.split(".", 2)[2]: value for name, value in weights.items() if name.split(".")[1] == kind}
    if kind == "text":
        tokens = own["token_embedding.weight"][media] + own["pos_embed"][0]
    else:
        stem = own.get("rgbt_stem.proj.weight", own.get("rgbt_stem.proj.1.weight"))
        assert stem is not None
        convolve = conv3d if kind == "vision" else conv2d
        stride = stem.shape[2:] if kind == "vision" else (10, 10)
        patches = convolve(media[None], stem, stride=stride)[0].flatten(1).T
        if kind == "audio":
            norm = own["rgbt_stem.norm_layer.weight"], own["rgbt_stem.norm_layer.bias"]
            patches = layer_norm(patches, patches.shape[1:], *norm, 1e-5)
        tokens = torch.cat([own["cls_token"][0], patches]) + own["pos_embedding_helper.pos_embed"][0]
    width = tokens.shape[1:]
    if kind == "vision":
        tokens = layer_norm(
            tokens, width, own["pre_transformer_layer.0.weight"], own["pre_transformer_layer.0.bias"], 1e-6
        )
    number = 0
    while f"blocks.{number}.norm_1.weight" in own:
        block = {name.split(".", 2)[2]: value for name, value in own.items() if name.startswith(f"blocks.{number}.")}
        tokens = tokens + attended(block, tokens, num_heads, is_causal=kind == "text")
        normed = layer_norm(tokens, width, block["norm_2.weight"], block["norm_2.bias"], 1e-6)
        hidden = normed @ block["mlp.fc1.weight"].T + block["mlp.fc1.bias"]
        hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
        tokens = tokens + hidden @ block["mlp.fc2.weight"].T + block["mlp.fc2.bias"]
        number += 1
    place = int(media.argmax()) if kind == "text" else 0
    first, last = ("proj.0", "proj.1") if kind == "text" else ("0", "2")
    pooled = layer_norm(tokens[place], width, own[f"{first}.weight"], own[f"{first}.bias"], 1e-6)
    embedding = normalize(own[f"{last}.weight"] @ pooled, dim=0)
    return embedding if kind == "vision" else embedding * own["1.log_logit_scale"].exp().clamp_max(100)


def attended(block: dict[str, Tensor], tokens: Tensor, num_heads: int, *, is_causal: bool) -> Tensor:
    normed = layer_norm(tokens, tokens.shape[1:], block["norm_1.weight"], block["norm_1.bias"], 1e-6)
    queries, keys, values = (normed @ block["attn.in_proj_weight"].T + block["attn.in_proj_bias"]).chunk(3, 1)
    if "attn.bias_k" in block:
        keys, values = torch.cat([keys, block["attn.bias_k"][0]]), torch.cat([values, block["attn.bias_v"][0]])
    heads = []
    for query, key, value in zip(*(one.chunk(num_heads, 1) for one in (queries, keys, values)), strict=True):
        products = query @ key.T / math.sqrt(query.shape[1])
        if is_causal:
            for row in range(len(products)):
                products[row, row + 1 :] = -math.inf
        heads.append(products.exp() / products.exp().sum(1, keepdim=True) @ value)
    return torch.cat(heads, 1) @ block["attn.out_proj.weight"].T + block["attn.out_proj.bias"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_network_is_the_published_forward_pass(kind: Kind, twin: Imagebind) -> None:
    weights = load_file(twin.checkpoint)
    weights["modality_postprocessors.audio.1.log_logit_scale"].fill_(math.log(20))
    weights["modality_postprocessors.text.1.log_logit_scale"].fill_(6)  # more than the bound of 100
    loaded = load_imagebind(twin.checkpoint, HEADS, [kind], torch.device("cpu"))
    loaded.network.load_state_dict({name: value for name, value in weights.items() if name.split(".")[1] == kind})
    source = torch.Generator().manual_seed(1)
    media = {
        "vision": torch.randn(3, 3, 2, 32, 32, generator=source),
        "audio": torch.randn(3, 1, 128, 204, generator=source),
        "text": loaded.tokenizer(["a dog barks", "", "rain " * 90]),
    }[kind]
    with torch.no_grad():
        found = loaded.network(kind, media)
        expected = torch.stack([plain_forward(weights, kind, one, 2) for one in media])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    lengths = found.norm(dim=1)
    torch.testing.assert_close(lengths, torch.full((3,), {"vision": 1.0, "audio": 20.0, "text": 100.0}[kind]))
    assert found.std(0).max() > 1e-2


@pytest.mark.slow
@in_one_test("compare", ["sound_text", "sound_video", "image_text", "video_text"])
def test_the_score_is_the_cosine_of_means_over_clips(compare: Compare, twin: Imagebind) -> None:
    reward = replace(twin, compare=compare)
    reward.prepare(CPU)
    weights = load_file(twin.checkpoint)
    source = torch.Generator().manual_seed(2)
    heard = sounds(random.Random(2), 2, 80_000)  # five seconds
    videos, images = (torch.rand(2, *shape, 3, 32, 48, generator=source) for shape in ((50,), ()))
    texts = ["rain on a roof", "a naïve café"]
    has = {"sound": "audio" in reward.needs, "video": "videos" in reward.needs, "image": "images" in reward.needs}
    assert [medium for medium, is_needed in has.items() if is_needed] == [
        medium for medium in ("sound", "video", "image") if medium in compare
    ]
    outputs = Outputs(
        audio=heard if has["sound"] else None,
        videos=videos if has["video"] else None,
        images=images if has["image"] else None,
    )
    found = reward.score(batch_of(outputs, texts))
    network = reward._network
    assert network is not None
    for row in range(2):
        embeddings = []
        for medium in compare.split("_"):
            if medium == "text":
                clips = network.tokenizer([texts[row]])
            elif medium == "sound":
                clips = sound_clips(heard[row].mean(0))
            elif medium == "video":
                clips = video_clips(videos[row], 16.0, 32)
            else:
                middle = (images[row, :, :, 8:40] - MEAN[:, None, None]) / STD[:, None, None]
                clips = torch.stack([middle, middle], 1)[None]
            kind: Kind = {"text": "text", "sound": "audio"}.get(medium, "vision")  # type: ignore[assignment]
            embeddings.append(torch.stack([plain_forward(weights, kind, clip, 2) for clip in clips]).mean(0))
        expected = embeddings[0] @ embeddings[1] / embeddings[0].norm() / embeddings[1].norm()
        torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-5)


def slow_fbank(samples: "np.ndarray[tuple[int], np.dtype[np.float64]]", num_bins: int) -> list[list[float]]:
    """Kaldi's filter bank of 16,000 samples a second in plain loops; the spectrum by numpy."""
    low, high = (1127 * math.log(1 + frequency / 700) for frequency in (20.0, 8000.0))
    step = (high - low) / (num_bins + 1)
    rows = []
    for begin in range(0, len(samples) - 399, 160):
        frame = list(samples[begin : begin + 400])
        mean = sum(frame) / 400
        frame = [value - mean for value in frame]
        frame = [frame[place] - 0.97 * frame[max(place - 1, 0)] for place in range(400)]
        frame = [value * (0.5 - 0.5 * math.cos(2 * math.pi * place / 399)) for place, value in enumerate(frame)]
        power = np.abs(np.fft.fft(frame, 512)) ** 2
        row = []
        for number in range(num_bins):
            left = low + number * step
            energy = 0.0
            for place in range(256):
                mel = 1127 * math.log(1 + place * 31.25 / 700)
                if left < mel < left + 2 * step:
                    energy += power[place] * (1 - abs(mel - left - step) / step)
            row.append(math.log(max(energy, 2**-23)))
        rows.append(row)
    return rows


@pytest.mark.slow
@in_one_test(("samples", "frames"), [(399, 0), (400, 1), (1_000, 4)])
def test_the_filter_bank_is_kaldis(samples: int, frames: int) -> None:
    times = np.arange(samples)
    noise = np.random.default_rng(0).normal(size=samples)
    wave = 0.3 * np.sin(0.2 * times) + 0.05 * noise + 0.1
    found = kaldi_fbank(torch.from_numpy(wave), 16_000, 128)
    assert found.shape == (frames, 128)
    if frames:
        torch.testing.assert_close(found, torch.tensor(slow_fbank(wave, 128)), rtol=1e-4, atol=1e-3)


def test_silence_is_the_smallest_number_of_float32() -> None:
    found = kaldi_fbank(torch.zeros(400), 16_000, 4)
    torch.testing.assert_close(found, torch.full((1, 4), -23 * math.log(2)))


@in_one_test(
    ("length", "count", "starts"),
    [
        (Fraction(1), 3, [0]),
        (Fraction(2), 3, [0]),
        (Fraction(5), 3, [0, Fraction(3, 2), 3]),
        (Fraction(10), 5, [0, 2, 4, 6, 8]),
    ],
)
def test_clips_by_hand(length: Fraction, count: int, starts: list[Fraction]) -> None:
    assert clip_starts(length, count) == starts


def test_a_sound_becomes_clips_of_two_seconds() -> None:
    wave = torch.randn(80_000, generator=torch.Generator().manual_seed(0))
    found = sound_clips(wave)
    assert found.shape == (3, 1, 128, 204)
    middle = wave[24_000:56_000]
    expected = (kaldi_fbank(middle - middle.mean(), 16_000, 128).T + 4.268) / 9.138
    torch.testing.assert_close(found[1, 0, :, :198], expected)
    torch.testing.assert_close(found[..., 198:], torch.full((3, 1, 128, 6), 4.268 / 9.138))
    short = sound_clips(wave[:100])
    assert short.shape == (1, 1, 128, 204)
    torch.testing.assert_close(short, sound_clips(torch.cat([wave[:100], torch.zeros(300)])))


def test_a_video_becomes_pairs_of_frames_cut_three_times() -> None:
    """64 frames at 16 a second: clips start at 0, 0.5, 1, 1.5 and 2 seconds, each with its first and 32nd frame."""
    grey = torch.arange(64) / 64
    wide = grey[:, None, None, None].expand(64, 3, 8, 16) + torch.linspace(0, 0.5, 16)
    found = video_clips(wide, 16.0, 8)
    assert found.shape == (15, 3, 2, 8, 8)
    shown = found * STD[:, None, None, None] + MEAN[:, None, None, None]
    for clip, first in enumerate((0, 8, 16, 24, 32)):
        for crop, begin in enumerate((0, 4, 8)):
            pair = torch.stack([wide[first], wide[first + 31]], 1)[..., begin : begin + 8]
            torch.testing.assert_close(shown[3 * clip + crop], pair)
    tall = video_clips(wide.transpose(-1, -2), 16.0, 8)
    torch.testing.assert_close(tall, found.transpose(-1, -2))


def test_a_short_video_is_one_clip_and_its_shorter_side_fits() -> None:
    frames = torch.rand(3, 3, 16, 20, generator=torch.Generator().manual_seed(0))
    found = video_clips(frames, 16.0, 8)  # 8 x 10 pixels
    assert found.shape == (3, 3, 2, 8, 8)
    half = (frames[[0, 2], :, ::2, ::2] + frames[[0, 2], :, 1::2, ::2] + frames[[0, 2], :, ::2, 1::2]) / 4
    half = half + frames[[0, 2], :, 1::2, 1::2] / 4
    expected = ((half - MEAN[:, None, None]) / STD[:, None, None]).transpose(0, 1)
    for crop, begin in enumerate((0, 1, 2)):
        torch.testing.assert_close(found[crop], expected[..., begin : begin + 8])
    alone = video_clips(frames[:1], 16.0, 8)
    torch.testing.assert_close(alone[:, :, 0], alone[:, :, 1])


@pytest.mark.slow
def test_weights_of_other_kinds_are_left_out(twin: Imagebind, tmp_path: Path) -> None:
    weights = load_file(twin.checkpoint)
    weights["modality_trunks.depth.blocks.0.norm_1.weight"] = torch.ones(3)
    file = tmp_path / "more.safetensors"
    save_file(weights, file)
    reward = replace(twin, checkpoint=str(file))
    reward.prepare(CPU)
    assert reward._network is not None
    names = {name.split(".")[1] for name in reward._network.network.state_dict()}
    assert names == {"audio", "text"}


@pytest.mark.slow
def test_what_cannot_be_loaded_is_the_users_error(twin: Imagebind, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no ImageBind checkpoint '/no/such"):
        Imagebind(checkpoint="/no/such.pth").prepare(CPU)
    with pytest.raises(ConfigError, match="does not hold the ImageBind checkpoint: AssertionError"):
        replace(twin, num_heads=(2, 2, 3)).prepare(CPU)
    file = tmp_path / "other.safetensors"
    save_file({"modality_trunks.audio.blocks.0.norm_1.weight": torch.ones(3)}, file)
    with pytest.raises(ConfigError, match="does not hold the ImageBind checkpoint: KeyError"):
        replace(twin, checkpoint=str(file)).prepare(CPU)
    weights = load_file(write_tiny_imagebind(tmp_path, 0))
    del weights["modality_heads.text.proj.0.bias"]
    save_file(weights, file)
    with pytest.raises(ConfigError, match=r"Missing key.*modality_heads.text.proj.0.bias"):
        replace(twin, checkpoint=str(file)).prepare(CPU)


@pytest.mark.slow
def test_media_that_cannot_be_judged(twin: Imagebind) -> None:
    twin.prepare(CPU)
    heard = sounds(random.Random(4), 1, 100)
    with pytest.raises(ValueError, match=r"needs the samples a second of every sound, got \(0,\)"):
        twin.score(batch_of(Outputs(audio=heard, audio_rate=(0,)), [""]))
    with pytest.raises(ValueError, match="finite samples"):
        twin.score(batch_of(Outputs(audio=heard * math.nan), [""]))
    seeing = replace(twin, compare="video_text")
    seeing.prepare(CPU)
    with pytest.raises(ValueError, match="videos hold NaN"):
        seeing.score(batch_of(Outputs(videos=torch.full((1, 2, 3, 4, 4), math.nan)), [""]))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="checkpoint must be a file that ends in"):
        Imagebind(checkpoint="imagebind.bin")
    with pytest.raises(ValueError, match="num_heads"):
        Imagebind(num_heads=(0, 2, 2))
