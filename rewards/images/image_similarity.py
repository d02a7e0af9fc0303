"""The similarity of an image to the image of its prompt: edits, variations, image to image."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.media.pictures import as_tensor

from ..base.networks.checkpoints import check_suffix
from ..base.networks.clip import cosines
from ..base.networks.image_embedders import Embed, load_embedder, write_tiny_embedder
from ..base.networks.lpips import Trunk, load_lpips, write_tiny_lpips

Measure = Literal["dino", "clip", "lpips"]


@dataclass
class ImageSimilarity(Checked):
    """The similarity of an image to its prompt's first image: the cosine of embeddings, or minus the LPIPS distance.

    `dino`: the first token of DINOv2 (Oquab et al. 2023, arXiv 2304.07193), for content and details. `clip`: CLIP's
    image embedding (Radford et al. 2021, arXiv 2103.00020), for meaning, as flow_grpo's image_similarity. `lpips`
    (Zhang et al. 2018, arXiv 1801.03924, version 0.1): place by place; 0 for the same image, and unbounded below, since
    its weights are learned. For `lpips` the prompt's image is first resized (bicubic) to the size of the sample; the
    other encoders resize and crop both images in their own way.
    """

    source: ClassVar[str] = "Oquab et al. 2023, arXiv 2304.07193; Zhang et al. 2018 (LPIPS), arXiv 1801.03924"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)  # of the default measure
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "prompt.image", "model"})
    batch_size: ClassVar[int | None] = 64
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # DINOv2; CLIP has MIT

    measure: Measure = "dino"  # the network that compares
    # dino, clip: hub name or folder; null: facebook/dinov2-base or openai/clip-vit-large-patch14. lpips: file of the
    # trunk's weights with torchvision's names, here or owner/repository/file on the hub; null: torchvision's ImageNet
    model: str | None = None
    trunk: Trunk = "alex"  # lpips only; the published code's default is alex
    linear: str | None = None  # lpips only: file of the linear weights; null: the published ones
    _embed: Embed | None = field(default=None, init=False, repr=False, compare=False)
    _lpips: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.measure == "lpips":
            self.range = (float("-inf"), 0.0)  # type: ignore[misc]  # of this one, not of the class
            for name, file in (("model", self.model), ("linear", self.linear)):
                if file is not None:
                    check_suffix(name, file)
        elif self.linear is not None:
            raise ValueError(f"linear is of lpips, got {self.linear!r} with measure {self.measure!r}")

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random network, small for dino and clip, written to `folder`."""
        if self.measure == "lpips":
            trunk, linear = write_tiny_lpips(folder, self.trunk, seed)
            return replace(self, model=str(trunk), linear=str(linear))
        write_tiny_embedder(self.measure, folder, seed)
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the network; raises ConfigError where it is missing or does not fit."""
        if self.measure == "lpips":
            self._lpips = load_lpips(self.trunk, self.model, self.linear, placement.device)
        else:
            self._embed = load_embedder(self.measure, self.model, placement.device)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one."""
        assert batch.outputs.images is not None, "scoring checks needs"
        if self._lpips is not None:
            return -self._distances(self._lpips, batch, batch.outputs.images)
        assert self._embed is not None, "prepare comes before score"
        with torch.no_grad():
            references = _of_prompts(batch, self._embed)
        return cosines(self._embed(batch.outputs.images), references)

    def _distances(self, lpips: Any, batch: RewardBatch, images: Tensor) -> Tensor:
        from torchvision.transforms.v2.functional import InterpolationMode, resize

        images = images.to(next(lpips.parameters()).device, torch.float32)
        size = list(images.shape[-2:])

        def resized(reference: Tensor) -> Tensor:
            result: Tensor = resize(reference, size, interpolation=InterpolationMode.BICUBIC, antialias=True)
            return result.clamp(0, 1)  # bicubic resizing overshoots

        with torch.autocast(images.device.type, enabled=False):
            distances: Tensor = lpips(images, _of_prompts(batch, resized).to(images.device), normalize=True)
            return distances[:, 0, 0, 0]


def _of_prompts(batch: RewardBatch, use: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns [B, ...]: `use` of the prompts' first images [1, 3, h, w], each different image opened once."""
    pictures = [prompt.media[0] for prompt in batch.prompts]
    made = {id(picture): use(as_tensor(picture.load())[None]) for picture in {id(p): p for p in pictures}.values()}
    return torch.cat([made[id(picture)] for picture in pictures])
