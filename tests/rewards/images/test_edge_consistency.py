"""Edge consistency against loops over pixels, and networks against plain calls of torch on their own weights."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.media.pictures import Role
from mmrl.rewards.base.networks.edges import Hed, LineDrawing, canny_magnitudes
from mmrl.rewards.images.edge_consistency import EdgeConsistency
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, random_images, shown, smooth_images
from tests.rewards.roles import with_roles


def batch_of(images: Tensor, others: Tensor, role: Role = "control") -> RewardBatch:
    return with_roles(make_batch(Outputs(images=images), [""] * len(images), media=shown(others)), (role,))


def random_batch(rng: random.Random) -> RewardBatch:
    return batch_of(random_images(rng, 2 * GROUP), random_images(rng, 2 * GROUP))


# Canny's choice of the largest along an edge jumps under noise, so that HED is asked; its gradient has a test below.
# No truth: what a random network sees in an image is no map that could be given.
EXAMPLE = Example(random_batch=random_batch, settings={"edges": "hed"})


def ready(folder: Path, **settings: Any) -> EdgeConsistency:
    reward = EdgeConsistency(**settings).tiny(0, folder)
    reward.prepare(CPU)
    return reward


def inside(place: int, count: int) -> int:
    return min(max(place, 0), count - 1)


def mirrored(place: int, count: int) -> int:
    return -place if place < 0 else 2 * (count - 1) - place if place >= count else place


def canny_by_hand(image: Tensor) -> list[list[float]]:
    """Magnitudes of one image [3, H, W], pixel by pixel, by Canny's steps in Python numbers."""
    height, width = image.shape[-2:]
    rows, columns = range(height), range(width)
    colours: list[list[list[float]]] = image.double().tolist()
    red, green, blue = colours
    grey = [[0.299 * red[y][x] + 0.587 * green[y][x] + 0.114 * blue[y][x] for x in columns] for y in rows]
    bell = [math.exp(-(n**2) / 2) for n in (-2, -1, 0, 1, 2)]
    bell = [one / sum(bell) for one in bell]

    def smooth(y: int, x: int) -> float:
        return sum(
            bell[i] * bell[j] * grey[mirrored(y + i - 2, height)][mirrored(x + j - 2, width)]
            for i in range(5)
            for j in range(5)
        )

    soft = [[smooth(y, x) for x in columns] for y in rows]

    def at(y: int, x: int) -> float:
        return soft[inside(y, height)][inside(x, width)]

    def gradient(y: int, x: int) -> tuple[float, float]:
        across = sum(w * (at(y + d, x + 1) - at(y + d, x - 1)) for d, w in ((-1, 1), (0, 2), (1, 1)))
        down = sum(w * (at(y + 1, x + d) - at(y - 1, x + d)) for d, w in ((-1, 1), (0, 2), (1, 1)))
        return across, down

    slopes = [[gradient(y, x) for x in columns] for y in rows]
    size = [[math.sqrt(a * a + b * b + 1e-6) for a, b in row] for row in slopes]
    found = []
    for y in rows:
        found.append([0.0] * width)
        for x in columns:
            angle = round(math.atan2(slopes[y][x][1], slopes[y][x][0]) / (math.pi / 4)) * math.pi / 4
            step_x, step_y = round(math.cos(angle)), round(math.sin(angle))
            beside = [
                size[y + s * step_y][x + s * step_x]
                if 0 <= y + s * step_y < height and 0 <= x + s * step_x < width
                else 0.0
                for s in (-1, 1)
            ]
            if size[y][x] > max(beside):
                found[y][x] = size[y][x]
    return found


@pytest.mark.slow
def test_canny_is_that_of_a_loop_over_pixels() -> None:
    images = torch.cat([smooth_images(20, 27), torch.rand(2, 3, 20, 27, generator=torch.Generator().manual_seed(0))])
    found = canny_magnitudes(images.double())
    for image, magnitudes in zip(images, found, strict=True):
        torch.testing.assert_close(magnitudes, torch.tensor(canny_by_hand(image)).double(), rtol=0, atol=1e-5)
        assert 0.05 < float((magnitudes > 0).double().mean()) < 0.6


def test_a_step_has_one_edge() -> None:
    image = torch.zeros(1, 3, 16, 16)
    image[..., 8:] = 1.0
    image[..., 7] = 0.5
    found = canny_magnitudes(image)[0]
    is_edge = found > 0.1
    assert is_edge[:, 7].all() and int(is_edge.sum()) == 16


@pytest.mark.slow
def test_the_score_of_a_map_and_of_a_picture(tmp_path: Path) -> None:
    images = (smooth_images(16, 20) * 255).round() / 255
    maps = (random_images(random.Random(1), 4, 20)[..., :16, :] * 255).round() / 255
    found = ready(tmp_path).score(batch_of(images, maps))
    of_picture = ready(tmp_path, against="picture").score(batch_of(images, images.flip(0), "image"))
    others = [{"given": pair, "given_scores": (1.0,)} for pair in shown(images.flip(0))]
    reward = ready(tmp_path, against="given")
    of_given = reward.score(make_batch(Outputs(images=images), [""] * 4, others))
    torch.testing.assert_close(of_given, of_picture)
    assert "target.given" in reward.needs and "prompt.image" not in reward.needs
    edges = [[one for row in canny_by_hand(image) for one in row] for image in images]
    for number in range(4):
        wanted = (maps[number].sum(0) / 3).flatten().tolist()
        expected = -sum((one - other) ** 2 for one, other in zip(edges[number], wanted, strict=True)) / 320
        assert float(found[number]) == pytest.approx(expected, abs=1e-5)
        pairs = zip(edges[number], edges[3 - number], strict=True)
        assert float(of_picture[number]) == pytest.approx(-sum((a - b) ** 2 for a, b in pairs) / 320, abs=1e-5)


@pytest.mark.slow
def test_of_several_given_pictures_the_best_counts(tmp_path: Path) -> None:
    images = (smooth_images(16, 16) * 255).round() / 255
    (first,), (second,) = shown(images[:2])
    batch = make_batch(
        Outputs(images=images[:1]), [""], [{"given": (first, second), "given_scores": (0.0, 1.0)}]
    )  # fmt: skip
    expected = ready(tmp_path, against="picture").score(batch_of(images[:1], images[1:2], "image"))
    torch.testing.assert_close(ready(tmp_path, against="given").score(batch), expected)


@pytest.mark.slow
def test_the_gradient_of_canny_is_that_of_its_finite_differences() -> None:
    images = smooth_images(24, 24).double().requires_grad_()
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def total(given: Tensor) -> Tensor:
        return canny_magnitudes(given).square().sum()

    (gradient,) = torch.autograd.grad(total(images), images)
    with torch.no_grad():
        slope = (total(images + 1e-7 * noise) - total(images - 1e-7 * noise)) / 2e-7
    torch.testing.assert_close((gradient * noise).sum(), slope, rtol=1e-4, atol=1e-6)
    (flat,) = torch.autograd.grad(total(grey := torch.full((1, 3, 8, 8), 0.5, requires_grad=True)), grey)
    assert flat.isfinite().all()


def hed_by_hand(weights: dict[str, Tensor], images: Tensor) -> Tensor:
    features, logits = images * 255 - weights["norm"], []
    for number, count in enumerate((2, 2, 3, 3, 3), 1):
        for conv in range(count):
            name = f"block{number}.convs.{conv}"
            features = functional.conv2d(features, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=1).relu()
        name = f"block{number}.projection"
        edges = functional.conv2d(features, weights[f"{name}.weight"], weights[f"{name}.bias"])
        logits.append(functional.interpolate(edges, images.shape[-2:], mode="bilinear", align_corners=False))
        features = functional.max_pool2d(features, 2, 2)
    return 1 / (1 + torch.exp(-torch.stack(logits).sum(0) / 5))


def lines_by_hand(weights: dict[str, Tensor], images: Tensor) -> Tensor:
    def conv(name: str, features: Tensor, frame: int, stride: int = 1, zeros: int = 0) -> Tensor:
        given = functional.pad(features, (frame,) * 4, "reflect") if frame else features
        return functional.conv2d(given, weights[f"{name}.weight"], weights[f"{name}.bias"], stride, zeros)

    def norm(features: Tensor) -> Tensor:
        mean, variance = features.mean((2, 3), keepdim=True), features.var((2, 3), keepdim=True, unbiased=False)
        return (features - mean) / (variance + 1e-5).sqrt()

    features = norm(conv("model0.1", images, 3)).relu()
    for name in ("model1.0", "model1.3"):
        features = norm(conv(name, features, 0, 2, 1)).relu()
    for number in range(3):
        inner = norm(conv(f"model2.{number}.conv_block.1", features, 1)).relu()
        features = features + norm(conv(f"model2.{number}.conv_block.5", inner, 1))
    for name in ("model3.0", "model3.3"):
        up = functional.conv_transpose2d(
            features, weights[f"{name}.weight"], weights[f"{name}.bias"], stride=2, padding=1, output_padding=1
        )
        features = norm(up).relu()
    return 1 - conv("model4.1", features, 3).sigmoid()


@pytest.mark.slow
@pytest.mark.parametrize("edges", ["hed", "lineart"])
def test_networks_are_those_of_plain_calls(edges: Any, tmp_path: Path) -> None:
    reward = ready(tmp_path, edges=edges)
    assert reward.range == (-1.0, 0.0)
    images = (smooth_images(32, 48)[:2] * 255).round() / 255
    weights = load_file(str(reward.model))
    with torch.no_grad():
        expected = (hed_by_hand if edges == "hed" else lines_by_hand)(weights, images)[:, 0]
    assert expected.std() > 1e-3
    maps = random_images(random.Random(2), 2, 48)[..., :32, :]
    found = reward.score(batch_of(images, maps))
    torch.testing.assert_close(found, -(expected - maps.mean(1)).square().mean((1, 2)), rtol=0, atol=1e-5)


def test_names_and_shapes_are_the_published_ones() -> None:
    hed = {name: tuple(weight.shape) for name, weight in Hed().state_dict().items()}
    widths = [(3, 64, 2), (64, 128, 2), (128, 256, 3), (256, 512, 3), (512, 512, 3)]
    expected: dict[str, tuple[int, ...]] = {"norm": (1, 3, 1, 1)}
    for number, (given, width, count) in enumerate(widths, 1):
        for conv in range(count):
            expected[f"block{number}.convs.{conv}.weight"] = (width, width if conv else given, 3, 3)
            expected[f"block{number}.convs.{conv}.bias"] = (width,)
        expected |= {f"block{number}.projection.weight": (1, width, 1, 1), f"block{number}.projection.bias": (1,)}
    assert hed == expected
    lines = {name: tuple(weight.shape) for name, weight in LineDrawing().state_dict().items() if "weight" in name}
    assert lines == {
        "model0.1.weight": (64, 3, 7, 7),
        "model1.0.weight": (128, 64, 3, 3),
        "model1.3.weight": (256, 128, 3, 3),
        **{f"model2.{block}.conv_block.{conv}.weight": (256, 256, 3, 3) for block in range(3) for conv in (1, 5)},
        "model3.0.weight": (256, 128, 3, 3),
        "model3.3.weight": (128, 64, 3, 3),
        "model4.1.weight": (1, 64, 7, 7),
    }


@pytest.mark.slow
@pytest.mark.parametrize("edges", ["hed", "lineart"])
def test_networks_have_a_gradient(edges: Any, tmp_path: Path) -> None:
    reward = ready(tmp_path, edges=edges)
    images = smooth_images(32, 32).requires_grad_()
    (gradient,) = torch.autograd.grad(reward.score(batch_of(images, torch.zeros(4, 3, 32, 32))).sum(), images)
    assert gradient.isfinite().all() and float(gradient.norm()) > 0


def test_what_cannot_be_loaded_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no network of hed '/no/such\.pth'"):
        EdgeConsistency(edges="hed", model="/no/such.pth").prepare(CPU)
    torch.save({"norm": torch.zeros(1, 3, 1, 1)}, tmp_path / "part.pth")
    with pytest.raises(ConfigError, match="does not hold the network of hed"):
        EdgeConsistency(edges="hed", model=str(tmp_path / "part.pth")).prepare(CPU)
    with pytest.raises(ValueError, match=r"model is of hed and lineart, got 'a\.pth' with edges 'canny'"):
        EdgeConsistency(model="a.pth")
    with pytest.raises(ValueError, match="model must be a file that ends in"):
        EdgeConsistency(edges="hed", model="a.txt")


def test_prompts_are_checked() -> None:
    media = shown(torch.zeros(1, 3, 8, 8))[0]
    with pytest.raises(ValueError, match="needs an image of the role 'control', and the row has image"):
        EdgeConsistency().check(Prompt("", media, roles=("image",)))
    EdgeConsistency(against="given").check(Prompt("", target={"given": media, "given_scores": (1.0,)}))
    with pytest.raises(ValueError, match="got a text"):
        EdgeConsistency(against="given").check(Prompt("", target={"given": ("a",), "given_scores": (1.0,)}))
