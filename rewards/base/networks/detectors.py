"""Detectors of transformers behind one interface: objects of an image by class, with places and confidences."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from mmrl.core.contracts import ConfigError
from mmrl.parsing.coordinates import Box

from ..scenes import DetectedObject, same_name

# COCO's classes as GenEval names them.
COCO = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet",
    "tv", "laptop", "computer mouse", "tv remote", "computer keyboard", "cell phone", "microwave", "oven", "toaster",
    "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip


@dataclass(frozen=True)
class Detector:
    """A frozen detector, in float32 whatever the run's precision."""

    classes: Mapping[str, str]  # by the `same_name` of each what the model calls it
    # Images [B, 3, H, W] in [0, 1] and a threshold -> for each image the objects that are surer than that, the surest
    # first, by the `same_name` of their class.
    find: Callable[[Tensor, float], list[dict[str, list[DetectedObject]]]]


def load_detector(model: str, device: torch.device) -> Detector:
    """Loads a detector by hub name or folder: Mask2Former (with masks), or any model for object detection (boxes).

    Raises ConfigError where there is no such model, or it is of another kind, or a package is missing.
    """
    if find_spec("scipy") is None:  # the losses that the models of transformers hold ask for it
        raise ConfigError("detectors of transformers need the package scipy: `pip install scipy`")
    network, processor, has_masks = _loaded(model)
    network.to(device).eval().requires_grad_(False)
    labels = {int(number): same_name(label) for number, label in network.config.id2label.items()}

    @torch.no_grad()
    def find(images: Tensor, threshold: float) -> list[dict[str, list[DetectedObject]]]:
        size = (images.shape[-2], images.shape[-1])
        with torch.autocast(device.type, enabled=False):
            pixels = processor(images=images.to(device, torch.float32), do_rescale=False, return_tensors="pt")
            outputs = network(**pixels.to(device))
            if has_masks:
                seen = pixels["pixel_values"].shape[-2:]
                pairs = zip(outputs.class_queries_logits, outputs.masks_queries_logits, strict=True)
                detections = [_with_masks(classes, masks, seen, size, threshold) for classes, masks in pairs]
            else:
                sizes = [size] * len(images)
                each = processor.post_process_object_detection(outputs, threshold=threshold, target_sizes=sizes)
                detections = [_with_boxes(one, size) for one in each]
        return [_by_class(objects, labels) for objects in detections]

    return Detector({same_name(label): label for label in network.config.id2label.values()}, find)


def _loaded(model: str) -> tuple[Any, Any, bool]:
    """Returns the network in float32, its image processor, and whether its detections have masks."""
    from transformers import AutoConfig, AutoImageProcessor, AutoModelForObjectDetection
    from transformers import Mask2FormerForUniversalSegmentation as Mask2Former

    try:
        has_masks = AutoConfig.from_pretrained(model).model_type == "mask2former"
        processor: Any = AutoImageProcessor.from_pretrained(model)
        network: Any = (Mask2Former if has_masks else AutoModelForObjectDetection).from_pretrained(
            model, dtype=torch.float32
        )
    except (OSError, RuntimeError, ValueError) as error:  # what transformers raises for a model it cannot load
        raise ConfigError(
            f"cannot load the detector {model!r}: {shorten(str(error), 300)}; allowed are a hub name or a folder of"
            " Mask2Former or of a model for object detection, such as DETR or RT-DETR"
        ) from error
    return network, processor, has_masks


def _with_masks(
    class_logits: Tensor, mask_logits: Tensor, seen: Sequence[int], size: tuple[int, int], threshold: float
) -> list[tuple[int, DetectedObject]]:
    """Returns the instances of Mask2Former (Cheng et al. 2021, arXiv 2112.01527), as mmdet has them: class and object.

    Of Q queries and C classes the Q surest pairs; score = probability of the class * mean probability of the mask where
    it is above 1/2. The box is that of the mask, its far sides one pixel beyond the last. (transformers' own
    post-processing brings all masks to 384 x 384 first and lets later ones cover earlier ones.)

    Args:
        class_logits: [Q, C + 1], the last for no object. mask_logits: [Q, h, w].
        seen: height and width of the image as the network saw it. size: those of the image.
    """
    probabilities = class_logits.softmax(-1)[:, :-1]
    num_queries, num_classes = probabilities.shape
    scores, places = probabilities.flatten().topk(num_queries)
    is_sure = scores > threshold  # the mask can only make it less
    scores, places = scores[is_sure], places[is_sure]
    if not len(places):
        return []
    logits = mask_logits[places // num_classes][None]
    for height_and_width in (tuple(seen), size):
        logits = interpolate(logits, size=height_and_width, mode="bilinear", align_corners=False)
    masks = logits[0] > 0  # [n, H, W]
    inside = (logits[0].sigmoid() * masks).sum((1, 2)) / (masks.sum((1, 2)) + 1e-6)
    objects = []
    # on the CPU, with one wait for the device for all masks
    instances = zip(masks, masks.any(2).cpu(), masks.any(1).cpu(), strict=True)
    for score, number, instance in zip(
        (scores * inside).tolist(), (places % num_classes).tolist(), instances, strict=True
    ):
        if score > threshold:  # then the mask is not empty
            mask, (rows, columns) = instance[0], (side.nonzero()[:, 0].tolist() for side in instance[1:])
            box = float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)
            objects.append((number, DetectedObject(box, score, mask)))
    return objects


def _with_boxes(detected: Any, size: tuple[int, int]) -> list[tuple[int, DetectedObject]]:
    """Returns the boxes of transformers' detectors for one image, cut at its edges, without those wholly outside."""
    objects = []
    for score, number, box in zip(*(detected[key].tolist() for key in ("scores", "labels", "boxes")), strict=True):
        x1, y1, x2, y2 = (min(max(side, 0.0), float(size[1 - place % 2])) for place, side in enumerate(box))
        inside: Box = x1, y1, x2, y2
        if x1 < x2 and y1 < y2:
            objects.append((number, DetectedObject(inside, score)))
    return objects


def _by_class(objects: list[tuple[int, DetectedObject]], labels: dict[int, str]) -> dict[str, list[DetectedObject]]:
    by_class: defaultdict[str, list[DetectedObject]] = defaultdict(list)
    for number, one in sorted(objects, key=lambda pair: -pair[1].score):
        by_class[labels[number]].append(one)
    return dict(by_class)


def write_tiny_detector(folder: Path, seed: int) -> None:
    """Writes a Mask2Former of small sizes and random weights that is sure of what it sees, processor included.

    It knows COCO's classes, and finds mostly the first four.
    """
    from transformers import Mask2FormerForUniversalSegmentation, Mask2FormerImageProcessor

    from .tiny import randomise

    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are overwritten below
        network: Any = Mask2FormerForUniversalSegmentation(_tiny_config())
    randomise(network, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        network.class_predictor.weight *= 6
        network.class_predictor.bias[:4] += 12
        for name, weight in network.named_parameters():
            if name.endswith("mask_embedder.2.0.weight"):
                weight *= 20  # pixels are inside or outside of a mask, hardly between
    network.save_pretrained(folder)
    Mask2FormerImageProcessor(size={"shortest_edge": 64, "longest_edge": 128}).save_pretrained(folder)


def _tiny_config() -> Any:
    from transformers import Mask2FormerConfig, SwinConfig

    untyped: Any = SwinConfig  # `out_features` is none of its annotated fields
    backbone = untyped(
        image_size=64,
        patch_size=4,
        embed_dim=16,
        window_size=4,
        depths=[1, 1, 1, 1],
        num_heads=[1, 2, 2, 2],
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    return Mask2FormerConfig(
        backbone_config=backbone,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=32,
        dim_feedforward=32,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        num_queries=12,
        id2label=dict(enumerate(COCO)),
        label2id={name: number for number, name in enumerate(COCO)},
    )
