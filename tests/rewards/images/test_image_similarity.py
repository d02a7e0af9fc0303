"""Similarity of images against the package lpips, transformers and cosines written out."""

import random
import sys
from pathlib import Path
from typing import Any

import lpips
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BitImageProcessor, CLIPImageProcessor, CLIPModel, Dinov2Model

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.base.networks.clip import write_tiny_clip
from mmrl.rewards.base.networks.lpips import Trunk, load_lpips, measure_of
from mmrl.rewards.images.image_similarity import ImageSimilarity
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, Shown, random_images, shown, to_pil


def random_batch(rng: random.Random) -> RewardBatch:
    images, others = random_images(rng, 2 * GROUP), random_images(rng, 2 * GROUP)
    return make_batch(Outputs(images=images), [""] * 2 * GROUP, media=shown(others))


def same() -> RewardBatch:
    """Samples that are the image of their prompt."""
    images = random_images(random.Random(0), 2 * GROUP)
    return make_batch(Outputs(images=images), [""] * 2 * GROUP, media=shown(images))


EXAMPLE = Example(random_batch=random_batch, best=same)


def smooth(seed: int, height: int, width: int) -> Tensor:
    rough = torch.rand(3, 3, 4, 5, generator=torch.Generator().manual_seed(seed))
    return (torch.nn.functional.interpolate(rough, (height, width), mode="bilinear") * 255).round() / 255


def ready(folder: Path, **settings: Any) -> ImageSimilarity:
    reward = ImageSimilarity(**settings).tiny(0, folder)
    reward.prepare(CPU)
    return reward


def batch_of(images: Tensor, references: Tensor) -> RewardBatch:
    return make_batch(Outputs(images=images), [""] * len(images), media=shown(references))


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["dino", "clip"])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 83)])
def test_the_score_is_the_cosine_of_what_transformers_gives(
    height: int, width: int, measure: Any, tmp_path: Path
) -> None:
    reward = ready(tmp_path, measure=measure)
    images, references = smooth(0, height, width), smooth(1, 32, 32)
    found = reward.score(batch_of(images, references))

    def embed(pictures: list[Image.Image]) -> Tensor:
        with torch.no_grad():
            if measure == "dino":
                pixels = BitImageProcessor.from_pretrained(tmp_path)(images=pictures, return_tensors="pt")
                return Dinov2Model.from_pretrained(tmp_path)(**pixels).last_hidden_state[:, 0]  # type: ignore[no-any-return]
            pixels = CLIPImageProcessor.from_pretrained(tmp_path)(images=pictures, return_tensors="pt")
            return CLIPModel.from_pretrained(tmp_path).get_image_features(**pixels).pooler_output  # type: ignore[no-any-return]

    expected = torch.cosine_similarity(embed(to_pil(images)), embed(to_pil(references)))
    rounding = 0.0 if (height, width) == (32, 32) else 5e-3  # the processor rounds to 8 bits after each resize
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 + rounding)
    assert found.std() > 0.01


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of torchvision, on how lpips calls it
@pytest.mark.parametrize("trunk", ["alex", "vgg"])  # vgg has 15 M weights
def test_lpips_is_that_of_the_published_package(trunk: Trunk, tmp_path: Path) -> None:
    reward = ready(tmp_path, measure="lpips", trunk=trunk)
    assert reward.model is not None
    images, references = smooth(0, 64, 80), smooth(1, 64, 80)
    found = ImageSimilarity(measure="lpips", trunk=trunk, model=reward.model)  # with the published linear weights
    found.prepare(CPU)
    scores = found.score(batch_of(images, references))

    oracle = lpips.LPIPS(net=trunk, pnet_rand=True, verbose=False)
    weights = {name.removeprefix("features."): value for name, value in load_file(reward.model).items()}
    for layers in (getattr(oracle.net, f"slice{number}") for number in range(1, 6)):
        for name, layer in layers.named_children():
            if hasattr(layer, "weight"):
                layer.weight.data, layer.bias.data = weights[f"{name}.weight"], weights[f"{name}.bias"]
    with torch.no_grad():
        expected = -oracle(images, references, normalize=True)[:, 0, 0, 0]
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-7)
    assert scores.max() < -1e-4
    torch.testing.assert_close(found.score(batch_of(images, images)), torch.zeros(3), rtol=0, atol=1e-9)


@pytest.mark.slow
@torch.no_grad()
def test_lpips_by_hand_on_one_layer_of_two_channels() -> None:
    """The first layer has features (10 + t, 10 - t), t the normalised channels' sum; all others see nothing."""
    measure = measure_of("alex")
    for parameter in measure.parameters():
        torch.nn.init.zeros_(parameter)
    first: Any = measure.net.slice1[0]
    first.weight[0, :, 5, 5], first.weight[1, :, 5, 5], first.bias[:2] = 1.0, -1.0, 10.0  # the middle of its patch
    measure.lin0.model[1].weight[0, :2, 0, 0] = torch.tensor([2.0, 3.0])
    dark, light = torch.full((1, 3, 64, 64), 0.45), torch.full((1, 3, 64, 64), 0.55)
    found = measure(dark, light, normalize=True).item()

    # t = sum of (0.45 - mean) / std: -0.152838, -0.026786, 0.195556, and 0.1 / std more for 0.55: 1.327551
    (a, b), (c, d) = ((10.015932, 9.984068), (11.343483, 8.656517))
    left, right = (a**2 + b**2) ** 0.5, (c**2 + d**2) ** 0.5
    assert found == pytest.approx(2 * (a / left - c / right) ** 2 + 3 * (b / left - d / right) ** 2, rel=1e-4)


@pytest.mark.slow
def test_the_gradient_of_lpips_is_finite_where_no_feature_is_left(tmp_path: Path) -> None:
    reward = ready(tmp_path, measure="lpips")
    assert reward._lpips is not None
    first: Any = reward._lpips.net.slice1[0]
    first.bias.data.fill_(-100.0)
    images = smooth(0, 64, 64).requires_grad_()
    (gradient,) = torch.autograd.grad(reward.score(batch_of(images, smooth(1, 64, 64))).sum(), images)
    assert gradient.isfinite().all()


@pytest.mark.slow
def test_an_image_of_another_size_is_compared_at_the_size_of_the_sample(tmp_path: Path) -> None:
    reward = ready(tmp_path, measure="lpips")
    flat = torch.full((2, 3, 64, 48), 0.5)
    found = reward.score(batch_of(flat, torch.full((2, 3, 100, 30), 128 / 255)))
    assert found.abs().max() < 1e-3


@pytest.mark.slow
def test_each_image_of_prompts_is_opened_once(tmp_path: Path) -> None:
    opened: list[int] = []

    class Counted(Shown):
        def load(self) -> Image.Image:
            opened.append(id(self))
            return super().load()

    first, second = (Counted(image) for image in to_pil(smooth(0, 32, 32))[:2])
    images = smooth(1, 32, 32)
    media = [(first,), (second,), (first,)]
    reward = ready(tmp_path)
    found = reward.score(make_batch(Outputs(images=images), [""] * 3, media=media))
    assert opened == [id(first), id(second)]
    alone = [reward.score(make_batch(Outputs(images=images[n : n + 1]), [""], media=[media[n]])) for n in range(3)]
    torch.testing.assert_close(found, torch.cat(alone), rtol=1e-5, atol=1e-6)


def test_settings_are_checked() -> None:
    assert ImageSimilarity().range == (-1.0, 1.0)
    assert ImageSimilarity(measure="lpips").range == (-float("inf"), 0.0)
    with pytest.raises(ValueError, match="measure must be one of dino, clip, lpips, got 'dreamsim'"):
        ImageSimilarity(measure="dreamsim")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="trunk must be one of alex, vgg"):
        ImageSimilarity(measure="lpips", trunk="squeeze")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="linear is of lpips"):
        ImageSimilarity(linear="alex.pth")
    with pytest.raises(ValueError, match="model must be a file that ends in"):
        ImageSimilarity(measure="lpips", model="facebook/dinov2-base")


@pytest.mark.slow
def test_weights_that_do_not_fit_are_the_users_error(tmp_path: Path) -> None:
    trunk = ImageSimilarity(measure="lpips").tiny(0, tmp_path)
    assert trunk.model is not None and trunk.linear is not None
    save_file({"features.0.weight": torch.zeros(64, 3, 11, 11)}, tmp_path / "part.safetensors")
    with pytest.raises(ConfigError, match=r"(?s)does not hold the trunk of LPIPS.*Missing key"):
        load_lpips("alex", str(tmp_path / "part.safetensors"), trunk.linear, CPU.device)
    with pytest.raises(ConfigError, match=r"(?s)does not hold the linear weights of LPIPS.*Missing key"):
        load_lpips("alex", trunk.model, trunk.model, CPU.device)
    with pytest.raises(ConfigError, match="cannot load the DINO '/no/such"):
        ImageSimilarity(model="/no/such").prepare(CPU)
    write_tiny_clip("transformers", tmp_path / "clip", 0, embedding=4)
    with pytest.raises(ConfigError, match="its model_type is 'clip', not one of dinov2"):
        ImageSimilarity(model=str(tmp_path / "clip")).prepare(CPU)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics.functional.image.lpips", None)
    with pytest.raises(ConfigError, match=r"needs the package torchmetrics: `pip install 'mmrl\[lpips\]'`"):
        measure_of("alex")
