"""A penalty for images that are not safe for work, by a classifier's probability."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Granularity, License, Placement, RewardBatch

from ..base.networks.clip import TINY_PIXELS
from ..base.networks.dino_vit import TINY_VIT
from ..base.networks.loading import loading
from ..base.networks.tiny import randomise


@dataclass
class NsfwPenalty(Checked):
    """-max(0, p - threshold) / (1 - threshold), in [-1, 0]; p is the probability of `category` by a classifier.

    The default is Falconsai/nsfw_image_detection, a ViT-B/16 (Dosovitskiy et al. 2020, arXiv 2010.11929) trained on
    80,000 images labelled normal or nsfw; below the threshold, 0.5 where the classifier itself decides, nothing is
    lost. The form is ours. Resizing and normalising are the model's own: both sides become 224 (bilinear), values
    (x - 0.5) / 0.5. A penalty is no reward of its own: give it beside one. Frames of videos: `frame_mean` with
    `reduction: min`.
    """

    source: ClassVar[str] = "huggingface.co/Falconsai/nsfw_image_detection; the penalty's form is ours"
    range: ClassVar[tuple[float, float]] = (-1.0, 0.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = 64
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # Falconsai/nsfw_image_detection

    model: str = "Falconsai/nsfw_image_detection"  # hub name or folder of an image classifier of transformers
    category: str = "nsfw"  # the classifier's label of what is punished
    threshold: Annotated[float, Field(ge=0, lt=1)] = 0.5  # probability up to which nothing is punished
    _classifier: Any = field(default=None, init=False, repr=False, compare=False)
    _processor: Any = field(default=None, init=False, repr=False, compare=False)
    _place: int = field(default=0, init=False, repr=False, compare=False)  # of the label among the logits

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random classifier of small sizes, written to `folder`."""
        _write_tiny_classifier(folder, seed, self.category)
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the classifier; raises ConfigError where it cannot be loaded or has no such label."""
        from transformers import AutoImageProcessor, AutoModelForImageClassification

        with loading("classifier", self.model, "an image classifier of transformers, with its image processor"):
            classifier: Any = AutoModelForImageClassification.from_pretrained(self.model, dtype=torch.float32)
            self._processor = AutoImageProcessor.from_pretrained(self.model)
        labels = {str(name): int(place) for place, name in classifier.config.id2label.items()}
        if self.category not in labels:
            raise ConfigError(
                f"the classifier {self.model!r} has no label {self.category!r}; it has {', '.join(labels)}"
            )
        self._place = labels[self.category]
        self._classifier = classifier.to(placement.device).eval().requires_grad_(False)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one."""
        assert self._classifier is not None, "prepare comes before score"
        assert batch.outputs.images is not None, "scoring checks needs"
        device = self._classifier.device
        with torch.autocast(device.type, enabled=False):
            images = batch.outputs.images.to(device, torch.float32)
            pixels = self._processor(images=images, do_rescale=False, return_tensors="pt")["pixel_values"]
            logits: Tensor = self._classifier(pixel_values=pixels).logits  # [B, labels]
        probabilities = logits.softmax(-1)[:, self._place]
        return -(probabilities - self.threshold).clamp_min(0) / (1 - self.threshold)


def _write_tiny_classifier(folder: Path, seed: int, label: str) -> None:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    config = ViTConfig(**TINY_VIT, id2label={0: "normal", 1: label}, label2id={"normal": 0, label: 1})
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are drawn anew
        classifier = ViTForImageClassification(config)
    randomise(classifier, torch.Generator().manual_seed(seed))
    classifier.save_pretrained(folder)
    half = [0.5, 0.5, 0.5]
    size = {"height": TINY_PIXELS, "width": TINY_PIXELS}
    ViTImageProcessor(size=size, image_mean=half, image_std=half).save_pretrained(folder)
