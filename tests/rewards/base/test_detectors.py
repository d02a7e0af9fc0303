"""Detectors of objects against forwards of their own."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoImageProcessor,
    Mask2FormerForUniversalSegmentation,
    YolosConfig,
    YolosForObjectDetection,
    YolosImageProcessor,
)

from mmrl.rewards.base.networks.detectors import load_detector, write_tiny_detector
from mmrl.rewards.base.networks.tiny import randomise
from mmrl.rewards.base.scenes import same_name
from tests.rewards.pictures import CPU, smooth_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("detectors")
    write_tiny_detector(made / "detector", 0)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("height", "width"), [(48, 83), (64, 64)])
@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.9])
def test_objects_are_those_of_a_forward_of_its_own(folder: Path, height: int, width: int, threshold: float) -> None:
    images = smooth_images(height, width)
    found = load_detector(str(folder / "detector"), CPU.device).find(images, threshold)
    network: Any = Mask2FormerForUniversalSegmentation.from_pretrained(folder / "detector").eval()
    processor = AutoImageProcessor.from_pretrained(folder / "detector")
    num_found = 0
    for image, objects in zip(images, found, strict=True):
        pixels = processor(images=image[None], do_rescale=False, return_tensors="pt")["pixel_values"]
        assert pixels.shape[-2] % 32 == pixels.shape[-1] % 32 == 0
        with torch.no_grad():
            outputs = network(pixels)
        pairs = []  # every query with every class
        for query, logits in enumerate(outputs.class_queries_logits[0]):
            weights = [float(one.exp()) for one in logits.double()]
            pairs += [(weight / sum(weights), query, number) for number, weight in enumerate(weights[:-1])]
        expected: dict[str, list[tuple[float, list[float]]]] = {}
        for probability, query, number in sorted(pairs, reverse=True)[: network.config.num_queries]:
            resize = partial(torch.nn.functional.interpolate, mode="bilinear", align_corners=False)
            mask = resize(
                resize(outputs.masks_queries_logits[:, query : query + 1], pixels.shape[-2:]), (height, width)
            )
            inside = mask[0, 0] > 0
            score = probability * float(mask[0, 0].sigmoid()[inside].mean()) if inside.any() else 0.0
            if score > threshold:
                places = inside.nonzero()
                (top, left), (bottom, right) = places.amin(0).tolist(), places.amax(0).tolist()
                entry = (score, [left, top, right + 1, bottom + 1])
                expected.setdefault(same_name(network.config.id2label[number]), []).append(entry)
                num_found += 1
        assert set(objects) == set(expected)
        for name, entries in expected.items():
            entries.sort(reverse=True)
            assert [one.score for one in objects[name]] == pytest.approx([score for score, _ in entries], rel=1e-4)
            assert [list(one.box) for one in objects[name]] == [box for _, box in entries]
            assert all(one.mask is not None and one.mask.shape == (height, width) for one in objects[name])
    assert num_found > 0


def test_a_detector_of_boxes_gives_what_transformers_does(tmp_path: Path) -> None:
    config: Any = YolosConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=[48, 64],
        patch_size=16,
        num_detection_tokens=10,
        id2label={0: "cat", 1: "sofa", 2: "N/A"},
        label2id={"cat": 0, "sofa": 1, "N/A": 2},
    )
    with torch.random.fork_rng(devices=[]):
        network: Any = YolosForObjectDetection(config).eval()
    randomise(network, torch.Generator().manual_seed(0))
    with torch.no_grad():
        network.class_labels_classifier.layers[-1].weight.mul_(8)  # sure of what it sees
    network.save_pretrained(tmp_path)
    processor = YolosImageProcessor(size={"height": 48, "width": 64})
    processor.save_pretrained(tmp_path)
    images = smooth_images(40, 60)
    found = load_detector(str(tmp_path), CPU.device).find(images, 0.4)
    with torch.no_grad():
        outputs = network(**processor(images=images, do_rescale=False, return_tensors="pt"))
    expected = processor.post_process_object_detection(outputs, threshold=0.4, target_sizes=[(40, 60)] * 4)
    bounds = torch.tensor([60.0, 40.0, 60.0, 40.0])
    num_found = 0
    for objects, one in zip(found, expected, strict=True):
        for number, name in enumerate(["cat", "couch", "na"]):
            rows = [row for row in one["scores"].argsort(descending=True).tolist() if one["labels"][row] == number]
            boxes = [one["boxes"][row].clamp(min=0).minimum(bounds) for row in rows]
            assert [list(each.box) for each in objects.get(name, [])] == [box.tolist() for box in boxes]
            num_found += len(rows)
    assert num_found > 0 and all(each.mask is None for one in found for some in one.values() for each in some)


@pytest.mark.slow
def test_the_tiny_twin_is_made_by_its_seed(tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    for name, seed in (("first", 0), ("same", 0), ("other", 1)):
        write_tiny_detector(tmp_path / name, seed)
    files = [next((tmp_path / name).glob("*.safetensors")).read_bytes() for name in ("first", "same", "other")]
    assert files[0] == files[1] and files[0] != files[2]
    assert torch.equal(torch.random.get_rng_state(), state), "nobody else's randomness moved"
