"""CLIP score: the processors' own preprocessing, the published formula, one encoding per text."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import open_clip
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import CLIPModel, CLIPProcessor

from mmrl.core.contracts import ConfigError, Placement, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.base.networks.clip import Library, load_clip, write_tiny_clip
from mmrl.rewards.models.clip_score import ClipScore
from tests.parameters import in_one_test
from tests.rewards.example import Example
from tests.rewards.pictures import random_pictures

# No truth: which image fits a text best is what the model was trained to say.
EXAMPLE = Example(random_batch=random_pictures)
CPU = Placement(torch.device("cpu"), torch.float32)
TEXTS = ["a red circle", "two blue squares, please", "a red circle", "naïve café 🙂"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Library, Path]:
    """A tiny CLIP of each library."""
    made: dict[Library, Path] = {name: tmp_path_factory.mktemp(name) for name in ("transformers", "open_clip")}
    for library, folder in made.items():
        write_tiny_clip(library, folder, 0, embedding=16)
    return made


def pictures(height: int, width: int) -> list[Image.Image]:
    """Three smooth RGB pictures."""
    rough = torch.rand(3, 3, 4, 5, generator=torch.Generator().manual_seed(3))
    smooth = torch.nn.functional.interpolate(rough, (height, width), mode="bilinear")
    return [Image.fromarray((image * 255).to(torch.uint8).permute(1, 2, 0).numpy()) for image in smooth]


def as_tensor(images: list[Image.Image]) -> Tensor:
    size = images[0].size
    bytes_of = [torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8) for image in images]
    return torch.stack([row.view(size[1], size[0], 3).permute(2, 0, 1) for row in bytes_of]) / 255


@pytest.mark.slow
@pytest.mark.parametrize("library", ["transformers", "open_clip"])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 83), (95, 64), (20, 27)])
def test_preprocessing_is_the_processors_own(
    library: Library, height: int, width: int, folders: dict[Library, Path]
) -> None:
    images = pictures(height, width)
    if library == "transformers":
        processor = CLIPProcessor.from_pretrained(folders[library])
        expected = processor(images=images, return_tensors="pt")["pixel_values"]
    else:
        _, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{folders[library]}")
        expected = torch.stack([preprocess(image) for image in images])
    clip = load_clip(library, str(folders[library]), None, CPU.device)
    found = clip.preprocess(as_tensor(images)).clamp(clip.black, clip.white)
    grey_level = 1 / 255 / 0.26  # the processor rounds to 8 bits after each direction of the resize; we do not
    torch.testing.assert_close(found, expected, rtol=0, atol=1.5 * grey_level)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["transformers", "open_clip"])
def test_overshoot_of_bicubic_resizing_is_cut_as_8_bits_cut_it(library: Library, folders: dict[Library, Path]) -> None:
    white_square = torch.zeros(1, 3, 64, 64)
    white_square[..., 21:, :] = 1.0
    clip = load_clip(library, str(folders[library]), None, CPU.device)
    seen: list[Tensor] = []

    def counted(pixels: Tensor) -> Tensor:
        seen.append(pixels)
        return clip.embed_pixels(pixels)

    replace(clip, embed_pixels=counted).images(white_square)
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073])[:, None, None]
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711])[:, None, None]
    image = seen[0] * std + mean
    assert image.min() > -1e-6 and image.max() < 1 + 1e-6
    unclamped = clip.preprocess(white_square) * std + mean
    assert unclamped.max() > 1.01, "the picture makes bicubic resizing overshoot"


@pytest.mark.slow
def test_the_score_is_the_published_formula_with_transformers(
    folders: dict[Library, Path], make_batch: Callable[..., RewardBatch]
) -> None:
    folder = folders["transformers"]
    images = [*pictures(40, 60), pictures(40, 60)[0]]
    reward = ClipScore(model=str(folder), scale=100 / 30)
    reward.prepare(CPU)
    found = reward.score(make_batch(Outputs(images=as_tensor(images)), TEXTS))

    model, processor = CLIPModel.from_pretrained(folder), CLIPProcessor.from_pretrained(folder)
    with torch.no_grad():
        model.logit_scale.fill_(torch.tensor(100.0).log())
        inputs = processor(text=TEXTS, images=images, padding="max_length", truncation=True, return_tensors="pt")
        expected = model(**inputs).logits_per_image.diagonal() / 30  # as flow_grpo has it
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-3)  # 8-bit rounding of the processor's resize
    assert (found - expected).abs().max() < 0.05 * expected.std()


@pytest.mark.slow
def test_the_score_is_the_published_formula_with_open_clip(
    folders: dict[Library, Path], make_batch: Callable[..., RewardBatch]
) -> None:
    folder = folders["open_clip"]
    images = [*pictures(40, 60), pictures(40, 60)[0]]
    reward = ClipScore(library="open_clip", model=str(folder))
    reward.prepare(CPU)
    found = reward.score(make_batch(Outputs(images=as_tensor(images)), TEXTS))

    model, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    tokens = open_clip.get_tokenizer(f"local-dir:{folder}")(TEXTS)
    with torch.no_grad():
        left, right = model.encode_image(torch.stack([preprocess(i) for i in images])), model.encode_text(tokens)
    expected = torch.nn.functional.cosine_similarity(left, right)
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-3)
    assert (found - expected).abs().max() < 0.05 * expected.std()


@pytest.mark.slow
@pytest.mark.parametrize("library", ["transformers", "open_clip"])
def test_each_different_text_is_encoded_once(library: Library, folders: dict[Library, Path]) -> None:
    clip = load_clip(library, str(folders[library]), None, CPU.device)
    asked: list[list[str]] = []

    def counted(texts: list[str]) -> Tensor:
        asked.append(texts)
        return clip.embed_texts(texts)

    found = replace(clip, embed_texts=counted).texts(["b", "a", "b", "b"])
    assert asked == [["b", "a"]]
    torch.testing.assert_close(found, torch.cat([clip.texts([text]) for text in "babb"]))


@pytest.mark.slow
@pytest.mark.parametrize("library", ["transformers", "open_clip"])
def test_a_prompt_longer_than_the_context_is_cut(library: Library, folders: dict[Library, Path]) -> None:
    clip = load_clip(library, str(folders[library]), None, CPU.device)
    assert torch.equal(clip.texts(["z " * 200]), clip.texts(["z " * 300]))


@pytest.mark.slow
@pytest.mark.parametrize("library", ["transformers", "open_clip"])
def test_scores_are_in_full_precision_under_autocast(
    library: Library, folders: dict[Library, Path], make_batch: Callable[..., RewardBatch]
) -> None:
    reward = ClipScore(library=library, model=str(folders[library]))
    reward.prepare(Placement(torch.device("cpu"), torch.bfloat16))
    batch = make_batch(Outputs(images=as_tensor(pictures(32, 32))), TEXTS[:3])
    plain = reward.score(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(reward.score(batch), plain)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["transformers", "open_clip"])
def test_the_tiny_twin_is_made_by_its_seed(library: Library, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    for name, seed in (("first", 0), ("same", 0), ("other", 1)):
        ClipScore(library=library).tiny(seed, tmp_path / name)
    files = [next((tmp_path / name).glob("*.safetensors")).read_bytes() for name in ("first", "same", "other")]
    assert files[0] == files[1] and files[0] != files[2]
    assert torch.equal(torch.random.get_rng_state(), state), "nobody else's randomness moved"


@in_one_test(
    ("library", "model", "pretrained"),
    [
        ("transformers", "/no/such/folder", None),
        ("open_clip", "/no/such/folder", None),
        ("open_clip", "no-such-model", "openai"),
        ("open_clip", "ViT-B-32", None),
        ("open_clip", "ViT-B-32", "no-such-weights"),
    ],
)
def test_a_model_that_is_not_there_is_the_users_error(library: Library, model: str, pretrained: str | None) -> None:
    with pytest.raises(ConfigError, match=f"cannot load the CLIP '{model}.*{library}"):
        ClipScore(library=library, model=model, pretrained=pretrained).prepare(CPU)


@pytest.mark.parametrize(("library", "package"), [("open_clip", "open_clip"), ("transformers", "torchvision")])
def test_a_missing_package_is_named(library: Library, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"package {package}: `pip install {package}"):
        ClipScore(library=library).prepare(CPU)


def test_the_range_is_that_of_the_scale() -> None:
    assert ClipScore().range == ClipScore.range == (-1.0, 1.0)
    assert ClipScore(scale=2.5).range == (-2.5, 2.5)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"scale must be above 0 and at most 100, got 0"):
        ClipScore(scale=0.0)
    with pytest.raises(ValueError, match="pretrained is open_clip's"):
        ClipScore(pretrained="openai")
