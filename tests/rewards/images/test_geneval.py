"""GenEval's crops and colours against forwards of their own, and the reward that joins them with a detector."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import CLIPModel, CLIPProcessor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.media.pictures import as_tensor
from mmrl.rewards.base.networks.detectors import COCO, Detector, load_detector
from mmrl.rewards.base.scenes import COLORS, DetectedObject, same_name
from mmrl.rewards.images.geneval import GREY, Geneval, cut_out
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch
from tests.rewards.pictures import CPU, random_images, smooth_images

CHECKPOINTS = ("person", "bicycle", "car", "motorcycle")  # what tiny detectors find mostly


def batch_of(images: Tensor, *include: dict[str, Any], **other: Any) -> RewardBatch:
    target = {"include": list(include), **other}
    return make_batch(Outputs(images=images), ["a photo"] * len(images), [target] * len(images))


def random_batch(source: random.Random) -> RewardBatch:
    """Scenes of what a random detector may find, from one object to many."""
    targets = []
    for _ in range(8):
        entry = {"class": source.choice(CHECKPOINTS), "count": source.randrange(1, 13)}
        targets.append({"include": [entry], "tag": source.choice(["counting", "single_object"])})
    return make_batch(Outputs(images=random_images(source, 8)), ["a photo"] * 8, targets)


# No truth: what a detector of random weights sees in an image is written nowhere. test_scenes.py has that of the rules.
EXAMPLE = Example(random_batch=random_batch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("geneval")
    Geneval().tiny(0, made)
    return made


@pytest.fixture
def reward(folder: Path) -> Geneval:
    made = Geneval(detector=str(folder / "detector"), clip=str(folder / "clip"))
    made.prepare(CPU)
    return made


def sees(reward: Geneval, **objects: list[DetectedObject]) -> Geneval:
    """The reward with a detector that finds these in every image."""
    known = {same_name(name): name for name in COCO}
    reward._detector = Detector(known, lambda images, threshold: [dict(objects)] * len(images))
    return reward


@pytest.mark.parametrize("box", [(3, 5, 20, 19), (2.5, 3.5, 9.4, 12.6), (0, 0, 30, 24), (29, 23, 30, 24)])
@pytest.mark.parametrize("has_mask", [False, True])
def test_an_object_is_cut_out_as_pillow_does(box: tuple[float, float, float, float], has_mask: bool) -> None:
    levels = torch.randint(0, 256, (24, 30, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    mask = torch.rand(24, 30, generator=torch.Generator().manual_seed(1)) > 0.5
    image = Image.fromarray(levels.numpy())
    if has_mask:
        image = Image.composite(image, Image.new("RGB", image.size, color="#999"), Image.fromarray(mask.numpy()))
    x1, y1, x2, y2 = map(round, box)
    expected = as_tensor(image.crop((x1, y1, x2, y2)))
    found = cut_out(levels.permute(2, 0, 1) / 255, DetectedObject(box, 0.9, mask if has_mask else None))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("box", "shape"),
    [((4.2, 0, 4.4, 24), (8, 1)), ((30, 24, 30, 24), (1, 1)), ((0, 3, 30, 5), (2, 16))],
)
def test_a_crop_has_pixels_and_is_not_too_long(box: tuple[float, float, float, float], shape: tuple[int, int]) -> None:
    found = cut_out(torch.rand(3, 24, 30), DetectedObject(box, 0.9))
    assert tuple(found.shape[1:]) == shape


@pytest.mark.slow
def test_colours_are_those_of_clip(reward: Geneval, folder: Path) -> None:
    """The mean of three phrases for each colour, each of length 1, as clip_benchmark has it."""
    images = random_images(random.Random(0), 24)
    whole = DetectedObject((0, 0, 32, 32), 0.9)
    found = [reward._colors(image, [whole], "computer mouse")[0] for image in images]
    model, processor = CLIPModel.from_pretrained(folder / "clip"), CLIPProcessor.from_pretrained(folder / "clip")
    rows = []
    with torch.no_grad():
        for color in COLORS:
            texts = [f"a photo of a {color} computer mouse", f"a photo of a {color}-colored computer mouse"]
            inputs = processor(text=[*texts, f"a photo of a {color} object"], padding=True, return_tensors="pt")
            features: Any = model.get_text_features(**inputs)
            row = torch.nn.functional.normalize(features.pooler_output, dim=-1).mean(0)
            rows.append(row / row.norm())
        pixels = processor(images=list((images * 255).round().to(torch.uint8)), return_tensors="pt")["pixel_values"]
        seen: Any = model.get_image_features(pixel_values=pixels)
        places = (seen.pooler_output @ torch.stack(rows).T).argmax(1)
    assert found == [COLORS[place] for place in places.tolist()]
    assert len(set(found)) > 1, "the images are told apart"


@pytest.mark.slow
def test_colours_are_asked_of_the_object_on_grey(reward: Geneval, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    clip = reward._clip
    assert clip is not None
    texts_of = clip.texts

    class Counted:
        texts = staticmethod(texts_of)

        def images(self, images: Tensor) -> Tensor:
            seen.append(images)
            return torch.ones(1, 16)

    monkeypatch.setattr(reward, "_clip", Counted())
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[2:4, 2:5] = True
    reward._colors(torch.ones(3, 8, 8), [DetectedObject((2, 2, 6, 4), 0.9, mask)], "dog")
    assert seen[0].shape == (1, 3, 2, 4)
    torch.testing.assert_close(seen[0][0, 0], torch.tensor([[1, 1, 1, GREY]] * 2))


DOGS = [DetectedObject((0, 0, 8, 8), 0.95), DetectedObject((20, 0, 28, 8), 0.8), DetectedObject((0, 20, 8, 28), 0.2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "expected"),
    [("graded", [1.0, 0.5, 0.0, 0.0]), ("strict", [1.0, 0.0, 0.0, 0.0]), ("geneval", [1.0, 0.0, 0.0, 1.0])],
)
def test_forms_and_thresholds(reward: Geneval, form: Any, expected: list[float]) -> None:
    reward = sees(reward, dog=DOGS)
    reward.form = form
    image = torch.rand(1, 3, 32, 32)
    cases = [
        batch_of(image, {"class": "dog", "count": 2}, tag="colors"),  # two are surer than 0.3
        batch_of(image, {"class": "dog", "count": 2}, tag="counting"),  # one is surer than 0.9
        batch_of(image, {"class": "cat", "count": 1}),
        batch_of(image, {"class": "dog", "count": 1}),  # there are two
    ]
    assert [reward.score(case).item() for case in cases] == expected


@pytest.mark.slow
def test_only_so_many_objects_of_a_class_are_seen(reward: Geneval) -> None:
    many = sees(reward, dog=[DetectedObject((0, 0, 8, 8), 0.95)] * 40)
    many.max_objects = 4
    assert many.score(batch_of(torch.rand(1, 3, 32, 32), {"class": "dog", "count": 4})).tolist() == [1.0]


@pytest.mark.slow
def test_parts_are_averaged(reward: Geneval) -> None:
    cat = [DetectedObject((20, 20, 28, 28), 0.95)]
    wanted = ({"class": "cat", "count": 1}, {"class": "dog", "count": 1, "position": ["left of", 0]})
    right = sees(reward, cat=cat, dog=[DetectedObject((0, 20, 8, 28), 0.9)])
    assert right.score(batch_of(torch.rand(2, 3, 32, 32), *wanted)).tolist() == [1.0, 1.0]
    wrong = sees(reward, cat=cat, dog=[DetectedObject((20, 0, 28, 8), 0.9)])
    assert wrong.score(batch_of(torch.rand(1, 3, 32, 32), *wanted)).tolist() == pytest.approx([2 / 3])


@pytest.mark.slow
def test_each_image_is_judged_by_its_own_scene(reward: Geneval) -> None:
    images = smooth_images(48, 64)
    targets = [{"include": [{"class": name, "count": 3, "color": "red"}]} for name in CHECKPOINTS]
    batch = make_batch(Outputs(images=images), ["a"] * 4, targets)
    alone = [
        reward.score(make_batch(Outputs(images=image[None]), ["a"], [target]))
        for image, target in zip(images, targets, strict=True)
    ]
    torch.testing.assert_close(reward.score(batch), torch.cat(alone))


@pytest.mark.slow
def test_an_unknown_class_and_a_scene_that_cannot_be_are_errors(reward: Geneval) -> None:
    image = torch.rand(1, 3, 32, 32)
    with pytest.raises(ValueError, match=r"knows no 'bicicle' \(did you mean 'bicycle'\?\)"):
        reward.score(batch_of(image, {"class": "bicicle", "count": 1}))
    with pytest.raises(ValueError, match="knows no 'qqqqqqqq'; it knows person, bicycle"):
        reward.check(Prompt("a", target={"include": [{"class": "qqqqqqqq", "count": 1}]}))
    Geneval().check(Prompt("a", target={"include": [{"class": "qqqqqqqq", "count": 1}]}))  # known once it is loaded
    with pytest.raises(ValueError, match="counts are whole numbers"):
        Geneval().check(Prompt("a", target={"include": [{"class": "dog", "count": 0}]}))
    with pytest.raises(ValueError, match="NaN or infinity"):
        reward.score(batch_of(image * float("nan"), {"class": "dog", "count": 1}))


@pytest.mark.slow
def test_a_model_that_is_no_detector_is_the_users_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot load the detector '/no/such/folder'.*Mask2Former"):
        Geneval(detector="/no/such/folder").prepare(CPU)
    with pytest.raises(ConfigError, match="cannot load the detector"):
        load_detector(str(folder / "clip"), CPU.device)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ConfigError, match="need the package scipy"):
        Geneval().prepare(CPU)


@in_one_test(
    ("settings", "message"),
    [
        ({"threshold": 1.0}, "threshold must be at least 0 and below 1, got 1.0"),
        ({"counting_threshold": -0.1}, "counting_threshold must be at least 0 and below 1"),
        ({"max_objects": 0}, "max_objects must be at least 1, got 0"),
        ({"margin": -1.0}, "margin must be at least 0"),
        ({"clip_pretrained": "openai"}, "clip_pretrained is open_clip's"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Geneval(**settings)
