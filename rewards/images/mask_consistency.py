"""Does an image have the classes that its prompt's label map asks for? A segmentation of the image against that map."""

import json
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Granularity, License, Placement, RewardBatch
from mmrl.core.data import Prompt

from ..base.networks.segmenter import Segmenter, load_segmenter, write_tiny_segmenter
from ..base.sources import Source, check_source, compared_with, label_maps_of

NO_CLASS = -1  # of pixels that are not counted
TINY_CLASSES = 5


@dataclass
class MaskConsistency(Checked):
    """mean log p(class) over the labelled pixels, at most 0 and unbounded below; p is a segmentation of the image.

    The segmentation reward of ControlNet++ (Li et al. 2024, arXiv 2404.07987, section 3.2; train/reward_control.py and
    utils.py), whose loss is its negative, the cross-entropy at the size of the logits. Theirs is mmsegmentation's
    UperNet with ResNet-50; transformers has UperNet with other trunks, trained on the same 150 classes of ADE20K. The
    image keeps its size, ImageNet's mean and deviation are taken off.

    What is compared with: `map`, the prompt's image of the role `control`, a label map. Its numbers are grey levels,
    or, with a `palette`, those of the nearest colours; number `first_class` is the model's class 0, and numbers of no
    class are not counted (ADE20K: 0 for what is in no class). `picture` and `given`: the classes that the network
    itself finds most likely in the prompt's picture to edit, or in the picture that the data brings. Label maps are
    resized to the logits by the nearest pixel.

    The published code computes in the run's precision, here it is float32.
    """

    source: ClassVar[str] = "Li et al. 2024 (ControlNet++), arXiv 2404.07987; github.com/liming-ai/ControlNet_Plus_Plus"
    range: ClassVar[tuple[float, float]] = (float("-inf"), 0.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "prompt.image", "model"})
    batch_size: ClassVar[int | None] = 16
    license: ClassVar[License] = License("MIT", commercial=True)  # openmmlab/upernet-convnext-small

    against: Source = "map"  # what is compared with: `map`, `picture` or `given`
    palette: Path | None = None  # JSON list of colours [r, g, b] of 0 to 255, one for each number; null: grey levels
    first_class: Annotated[int, Field(ge=0, le=255)] = 1  # the number of the model's class 0 in maps; ADE20K's is 1
    model: str = "openmmlab/upernet-convnext-small"  # hub name or folder of a network for semantic segmentation
    _segmenter: Segmenter | None = field(default=None, init=False, repr=False, compare=False)
    _colours: Tensor | None = field(default=None, init=False, repr=False, compare=False)  # [numbers, 3]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.against == "given":
            self.needs = frozenset({"images", "target.given", "model"})  # type: ignore[misc]  # of this one
        if self.palette is not None and self.against != "map":
            raise ValueError(f"palette is of maps, got {self.palette} with against {self.against!r}")

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random UperNet of few classes, written to `folder`; grey levels are classes."""
        write_tiny_segmenter(folder, seed, TINY_CLASSES)
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the network and the palette; raises ConfigError where one cannot be read."""
        self._segmenter = load_segmenter(self.model, placement.device)
        self._colours = None if self.palette is None else _read_palette(self.palette)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a prompt without the image to compare with."""
        check_source(prompt, self.against)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one.

        Raises ValueError for a label map without a pixel of a class of the model.
        """
        images = batch.outputs.images
        assert images is not None, "scoring checks needs"
        assert self._segmenter is not None, "prepare comes before score"
        logits = self._segmenter.logits(images.clamp(0, 1))  # [B, classes, h, w]
        with torch.no_grad():
            labels = self._labels(batch, self._segmenter, images, logits).to(logits.device)  # [B, h, w]
        counted = (labels != NO_CLASS).sum((1, 2))
        if bool((counted == 0).any()):
            raise ValueError(
                f"a label map has no pixel of the {self._segmenter.num_classes} classes of the model; the number of the"
                f" first is {self.first_class}"
            )
        losses = cross_entropy(logits, labels, ignore_index=NO_CLASS, reduction="none")  # 0 where nothing is counted
        return -losses.sum((1, 2)) / counted

    def _labels(self, batch: RewardBatch, segmenter: Segmenter, images: Tensor, logits: Tensor) -> Tensor:
        if self.against != "map":
            others = compared_with(batch, self.against, (int(images.shape[-2]), int(images.shape[-1])))
            return segmenter.logits(others).argmax(1)
        return label_maps_of(batch, partial(self._numbers, logits.shape[-2:], segmenter.num_classes))

    def _numbers(self, size: torch.Size, num_classes: int, label_map: Tensor) -> Tensor:
        """Returns the classes [1, h, w] of a label map [1, 3, H, W], -1 where it has none."""
        levels = interpolate(label_map, size, mode="nearest")[0].mul(255).round().permute(1, 2, 0)  # [h, w, 3]
        if self._colours is not None:
            numbers = torch.cdist(levels.flatten(0, 1), self._colours).argmin(1).view(size)
        elif bool((levels != levels[..., :1]).any()):
            raise ValueError("a label map has colours, and there is no palette that says their classes")
        else:
            numbers = levels[..., 0].long()
        classes = numbers - self.first_class
        return torch.where((classes >= 0) & (classes < num_classes), classes, NO_CLASS)[None]


def _read_palette(file: Path) -> Tensor:
    """Returns the colours [numbers, 3] of a palette. Raises ConfigError for a file that holds none."""
    try:
        colours: Any = torch.tensor(json.loads(file.read_text()), dtype=torch.float32)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot read the palette {file}: {error}") from error
    if colours.dim() != 2 or colours.shape[1] != 3 or not bool(((colours >= 0) & (colours <= 255)).all()):
        raise ConfigError(f"the palette {file} must be a list of colours [r, g, b] of 0 to 255")
    found: Tensor = colours
    return found
