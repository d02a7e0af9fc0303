"""Face similarity against windows and boxes written out, plain calls of torch, and Pillow's own crops."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.base.networks.face_detector import OutputNet, ProposalNet, RefineNet, load_face_detector, merged
from mmrl.rewards.base.networks.facenet import InceptionResnetV1
from mmrl.rewards.images.face_similarity import FaceSimilarity
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, random_images, shown, to_pil

NEEDED: dict[str, Any] = {"detector": "/no/such/folder", "model": "/no/such.pt"}  # settings without a default
Weights = dict[str, Tensor]


def patches(count: int, seed: int = 0, side: int = 48) -> Tensor:
    """Soft patches [count, 3, side, side], in which the random detector of the twin finds something."""
    rough = torch.rand(count, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
    return (functional.interpolate(rough, (side, side), mode="bilinear") * 255).round() / 255


def batch_of(images: Tensor, references: Tensor) -> RewardBatch:
    return make_batch(Outputs(images=images), [""] * len(images), media=shown(references))


def random_batch(rng: random.Random) -> RewardBatch:
    return batch_of(random_images(rng, 2 * GROUP), patches(2 * GROUP, rng.randrange(99), 32))


def same() -> RewardBatch:
    return batch_of(patches(4, 0, 32), patches(4, 0, 32))


EXAMPLE = Example(random_batch=random_batch, best=same, settings=NEEDED)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> FaceSimilarity:
    reward = FaceSimilarity(**NEEDED).tiny(0, tmp_path_factory.mktemp("faces"))
    reward.prepare(CPU)
    return reward


def weights_of(twin: FaceSimilarity, name: str) -> Weights:
    found: Weights = torch.load(Path(twin.detector) / name)
    return found


def conv(weights: Weights, number: str, features: Tensor) -> Tensor:
    made = functional.conv2d(features, weights[f"conv{number}.weight"], weights[f"conv{number}.bias"])
    return torch.where(made > 0, made, made * weights[f"prelu{number}.weight"].view(-1, 1, 1))


def dense(weights: Weights, name: str, features: Tensor) -> Tensor:
    return features @ weights[f"dense{name}.weight"].T + weights[f"dense{name}.bias"]


def proposal_by_hand(weights: Weights, window: Tensor) -> tuple[float, list[float]]:
    """The probability and the offsets of one window [3, 12, 12]."""
    features = functional.max_pool2d(conv(weights, "1", window[None]), 2)
    features = conv(weights, "3", conv(weights, "2", features))[0, :, 0, 0]
    judged = weights["conv4_1.weight"][:, :, 0, 0] @ features + weights["conv4_1.bias"]
    moved = weights["conv4_2.weight"][:, :, 0, 0] @ features + weights["conv4_2.bias"]
    return float(judged.exp()[1] / judged.exp().sum()), moved.tolist()


def square_by_hand(weights: Weights, square: Tensor) -> tuple[float, list[float]]:
    """The probability and the offsets of one square [3, 24, 24] or [3, 48, 48]."""
    is_output = square.shape[-1] == 48
    features = functional.max_pool2d(conv(weights, "1", square[None]), 3, 2, ceil_mode=True)
    features = conv(weights, "3", functional.max_pool2d(conv(weights, "2", features), 3, 2, ceil_mode=True))
    if is_output:
        features = conv(weights, "4", functional.max_pool2d(features, 2, 2, ceil_mode=True))
    flat = features[0].permute(2, 1, 0).reshape(-1)  # columns first, as the weights of Caffe are
    first, last = ("5", "6") if is_output else ("4", "5")
    hidden = dense(weights, first, flat)
    hidden = torch.where(hidden > 0, hidden, hidden * weights[f"prelu{first}.weight"])
    judged = dense(weights, f"{last}_1", hidden)
    return float(judged.exp()[1] / judged.exp().sum()), dense(weights, f"{last}_2", hidden).tolist()


def overlap(one: list[float], other: list[float], *, of_smaller: bool) -> float:
    end = 1 if of_smaller else 0
    wide, high = (min(one[n + 2], other[n + 2]) - max(one[n], other[n]) + end for n in (0, 1))
    shared = max(wide, 0) * max(high, 0)
    areas = [(box[2] - box[0] + end) * (box[3] - box[1] + end) for box in (one, other)]
    return shared / (min(areas) if of_smaller else sum(areas) - shared)


def merged_by_hand(boxes: list[list[float]], most: float, *, of_smaller: bool = False) -> list[list[float]]:
    chosen: list[list[float]] = []
    for box in sorted(boxes, key=lambda box: -box[4]):
        if all(overlap(box, other, of_smaller=of_smaller) <= most for other in chosen):
            chosen.append(box)
    return chosen


def moved_by_hand(box: list[float], offsets: list[float], end: int) -> list[float]:
    wide, high = box[2] - box[0] + end, box[3] - box[1] + end
    return [place + offset * side for place, offset, side in zip(box, offsets, (wide, high, wide, high), strict=False)]


def square_of(box: list[float]) -> list[float]:
    side, x, y = max(box[2] - box[0], box[3] - box[1]), (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return [x - side / 2, y - side / 2, x + side / 2, y + side / 2]


def area(pixels: Tensor, height: int, width: int) -> Tensor:
    return functional.adaptive_avg_pool2d(pixels, (height, width))


def boxes_by_hand(twin: FaceSimilarity, image: Tensor) -> list[list[float]]:
    """MTCNN on one image [3, H, W], window by window and box by box."""
    pixels = image * 255
    rows, columns = image.shape[-2:]
    networks = [weights_of(twin, name) for name in ("pnet.pt", "rnet.pt", "onet.pt")]
    found: list[list[float]] = []
    scale = 12 / twin.min_face
    while min(rows, columns) * scale >= 12:
        level = (area(pixels, int(rows * scale + 1), int(columns * scale + 1)) - 127.5) / 128
        boxes = []
        for row in range(0, level.shape[1] - 11, 2):
            for column in range(0, level.shape[2] - 11, 2):
                sure, offsets = proposal_by_hand(networks[0], level[:, row : row + 12, column : column + 12])
                if sure >= twin.thresholds[0]:
                    ends = np.array([column + 1, row + 1, column + 12, row + 12], np.float32)
                    boxes.append([*np.floor(ends / np.float32(scale)).tolist(), sure, *offsets])
        found += merged_by_hand(boxes, 0.5)
        scale *= 0.709
    boxes = [square_of(moved_by_hand(box[:4], box[5:], 0)) for box in merged_by_hand(found, 0.7)]
    for network, side, threshold in ((networks[1], 24, twin.thresholds[1]), (networks[2], 48, twin.thresholds[2])):
        judged = []
        for box in boxes:
            x1, y1 = max(int(box[0]), 1), max(int(box[1]), 1)
            x2, y2 = min(int(box[2]), columns), min(int(box[3]), rows)
            if x2 < x1 or y2 < y1:
                continue
            square = (area(pixels[:, y1 - 1 : y2, x1 - 1 : x2], side, side) - 127.5) / 128
            sure, offsets = square_by_hand(network, square)
            if sure > threshold:
                judged.append([*box, sure, *offsets])
        if side == 24:
            boxes = [square_of(moved_by_hand(box[:4], box[5:], 1)) for box in merged_by_hand(judged, 0.7)]
        else:
            boxes = [[*moved_by_hand(box[:4], box[5:], 1), box[4]] for box in judged]
    return merged_by_hand(boxes, 0.7, of_smaller=True)


@pytest.mark.slow
def test_boxes_are_those_of_windows_one_by_one(twin: FaceSimilarity) -> None:
    reward = replace(twin, thresholds=(0.6, 0.7, 0.5))
    detector = load_face_detector(reward.detector, reward.thresholds, reward.min_face, CPU.device)
    counts = []
    noise = torch.rand(1, 3, 59, 59, generator=torch.Generator().manual_seed(0))
    for image in torch.cat([patches(2, 1, 59), noise])[..., :45, :]:  # levels have even sides, as whole windows need
        expected = boxes_by_hand(reward, image)
        found = detector.boxes(image)
        torch.testing.assert_close(found, torch.tensor(expected).view(-1, 5), rtol=0, atol=2e-3)
        counts.append(len(found))
    assert max(counts) > 1


def test_boxes_merge_by_union_or_by_the_smaller() -> None:
    outer, inner, far = [0.0, 0.0, 9.0, 9.0, 0.9], [0.0, 0.0, 4.0, 4.0, 0.8], [20.0, 0.0, 24.0, 4.0, 0.7]
    boxes = torch.tensor([far, inner, outer])
    assert merged(boxes, 0.7).tolist() == [2, 1, 0]  # 16 / 81
    assert merged(boxes, 0.7, of_smaller=True).tolist() == [2, 0]
    assert merged(boxes[:0], 0.7, of_smaller=True).tolist() == []


@pytest.mark.slow
def test_the_score_is_the_cosine_of_the_largest_faces(twin: FaceSimilarity) -> None:
    images, references = patches(4, 2), patches(4, 3)
    found = twin.score(batch_of(images, references))
    detector, embedder = twin._detector, twin._embedder
    assert detector is not None and embedder is not None

    def embedding(image: Tensor, picture: Image.Image) -> Tensor:
        boxes = detector.boxes(image).tolist()
        box = max(boxes, key=lambda box: (box[2] - box[0]) * (box[3] - box[1]))
        ends = [int(max(box[0], 0)), int(max(box[1], 0)), int(min(box[2], 48)), int(min(box[3], 48))]
        face = np.asarray(
            picture.crop((ends[0], ends[1], ends[2], ends[3])).resize((160, 160), Image.Resampling.BILINEAR), np.float32
        )
        with torch.no_grad():
            made: Tensor = embedder(torch.from_numpy((face - 127.5) / 128).permute(2, 0, 1)[None])[0]
        return made

    pairs = zip(images, to_pil(images), references, to_pil(references), strict=True)
    expected = [torch.dot(embedding(a, b), embedding(c, d)) for a, b, c, d in pairs]
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=2e-2)  # Pillow rounds to 8 bits
    torch.testing.assert_close(twin.score(batch_of(images, images)), torch.ones(4), rtol=0, atol=1e-5)
    assert found.std() > 0.1


@pytest.mark.slow
def test_no_face_is_the_lowest_score_and_counted(twin: FaceSimilarity) -> None:
    images = patches(4, 2)
    whole = twin.score(batch_of(images, images))
    reward = replace(twin)
    reward.prepare(CPU)
    assert reward.spent() == {"without_face": 0.0}
    assert reward._detector is not None
    real = reward._detector.boxes

    class Blind:
        """Finds nothing in dark images."""

        def boxes(self, image: Tensor) -> Tensor:
            return real(image) if float(image.mean()) > 0.01 else torch.zeros(0, 5)

    reward._detector = Blind()  # type: ignore[assignment]
    dark = images * torch.tensor([1.0, 0.0, 1.0, 0.0]).view(4, 1, 1, 1)
    dark.requires_grad_()
    found = reward.score(batch_of(dark.detach(), images))
    torch.testing.assert_close(found[[0, 2]], whole[[0, 2]])
    assert found[[1, 3]].tolist() == [-1.0, -1.0] and reward.spent() == {"without_face": 2.0}
    batch = batch_of(images, images)
    scores = reward.score(replace(batch, outputs=Outputs(images=dark)))
    (gradient,) = torch.autograd.grad(scores.sum(), dark)
    assert float(gradient[1].abs().max()) == 0 and gradient.isfinite().all()
    with pytest.raises(ValueError, match="no face is found in the prompt's picture"):
        reward.score(batch_of(images, torch.zeros(4, 3, 48, 48)))


@pytest.mark.slow
def test_large_pictures_of_prompts_are_shrunk(twin: FaceSimilarity) -> None:
    large = functional.interpolate(patches(1, 4), (1040, 2080), mode="bilinear")
    with torch.no_grad():
        fitted = functional.interpolate(large, (512, 1024), mode="bilinear", antialias=True)
    reward = replace(twin, min_face=200)
    reward.prepare(CPU)
    images = patches(1, 5, 256)
    found = reward.score(batch_of(images, large))
    torch.testing.assert_close(found, reward.score(batch_of(images, fitted)), rtol=0, atol=5e-3)


def test_names_and_shapes_are_the_published_ones() -> None:
    def shapes(network: torch.nn.Module) -> dict[str, tuple[int, ...]]:
        return {name: tuple(weight.shape) for name, weight in network.state_dict().items() if "weight" in name}

    assert shapes(ProposalNet()) == {
        **{"conv1.weight": (10, 3, 3, 3), "conv2.weight": (16, 10, 3, 3), "conv3.weight": (32, 16, 3, 3)},
        **{"prelu1.weight": (10,), "prelu2.weight": (16,), "prelu3.weight": (32,)},
        **{"conv4_1.weight": (2, 32, 1, 1), "conv4_2.weight": (4, 32, 1, 1)},
    }
    refine, output = shapes(RefineNet()), shapes(OutputNet())
    assert refine["dense4.weight"] == (128, 576) and refine["dense5_2.weight"] == (4, 128)
    assert output["dense5.weight"] == (256, 1152) and output["dense6_3.weight"] == (10, 256)
    network = InceptionResnetV1()
    assert sum(weight.numel() for weight in network.parameters()) == 23_482_624
    found = shapes(network)
    assert found["repeat_1.4.branch2.2.conv.weight"] == (32, 32, 3, 3)
    assert found["mixed_6a.branch1.2.conv.weight"] == (256, 192, 3, 3)
    assert found["repeat_2.9.branch1.1.conv.weight"] == (128, 128, 1, 7)
    assert found["mixed_7a.branch2.2.conv.weight"] == (256, 256, 3, 3)
    assert found["repeat_3.0.branch1.2.conv.weight"] == (192, 192, 3, 1)
    assert found["block8.conv2d.weight"] == (1792, 384, 1, 1) and found["last_linear.weight"] == (512, 1792)


@pytest.mark.slow
def test_the_layer_of_classes_is_left_out(twin: FaceSimilarity, tmp_path: Path) -> None:
    weights: Any = torch.load(twin.model)
    torch.save(weights | {"logits.weight": torch.zeros(9, 64), "logits.bias": torch.zeros(9)}, tmp_path / "all.pt")
    reward = replace(twin, model=str(tmp_path / "all.pt"))
    reward.prepare(CPU)
    batch = batch_of(patches(4, 2), patches(4, 3))
    assert torch.equal(reward.score(batch), twin.score(batch))


@pytest.mark.slow
def test_what_cannot_be_loaded_is_the_users_error(twin: FaceSimilarity, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no face detector '/no/such/folder/pnet\.pt'"):
        FaceSimilarity(**NEEDED).prepare(CPU)
    with pytest.raises(ConfigError, match=r"no face embedder '/no/such\.pt'"):
        replace(twin, model="/no/such.pt").prepare(CPU)
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(ConfigError, match="does not hold the face embedder"):
        replace(twin, model=str(tmp_path / "other.pt")).prepare(CPU)
    with pytest.raises(ValueError, match="model must be a file that ends in"):
        FaceSimilarity(detector="a", model="b")
    with pytest.raises(ValueError, match="min_face"):
        FaceSimilarity(**NEEDED, min_face=4)
