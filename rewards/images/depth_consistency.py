"""Does an image have the depth that its prompt's depth map asks for? The map of the image against that one."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.core.data import Prompt

from ..base.networks.depth import depth_of, divided_by_largest, load_dpt, write_tiny_dpt
from ..base.sources import picture_of, sources_of


@dataclass
class DepthConsistency(Checked):
    """-mean (d(x) - c)^2 over pixels, in [-1, 0]; d(x) is the depth that a DPT sees in the image, c that of the prompt.

    The depth reward of ControlNet++ (Li et al. 2024, arXiv 2404.07987, section 3.2; train/reward_control.py and
    utils.py), whose loss is its negative: both maps are divided by their largest value, since monocular depth has no
    scale. `map`: the prompt's image of the role `control` is a depth map itself, the mean of its channels, light where
    near (theirs). `picture`: the prompt's picture to edit, whose depth the same DPT says; for edits that must keep
    their places. Prompts' images are resized (bicubic) to the size of the sample.

    The published code computes in the run's precision, here it is float32.
    """

    source: ClassVar[str] = "Li et al. 2024 (ControlNet++), arXiv 2404.07987; github.com/liming-ai/ControlNet_Plus_Plus"
    range: ClassVar[tuple[float, float]] = (-1.0, 0.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "prompt.image", "model"})
    batch_size: ClassVar[int | None] = 16
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # Intel/dpt-hybrid-midas

    against: Literal["map", "picture"] = "map"  # what the prompt brings: its depth, or a picture
    model: str = "Intel/dpt-hybrid-midas"  # hub name or folder of a DPT of transformers; ControlNet++'s
    _dpt: Any = field(default=None, init=False, repr=False, compare=False)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random DPT of small sizes, written to `folder`."""
        write_tiny_dpt(folder, seed)
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it cannot be loaded."""
        self._dpt = load_dpt(self.model, placement.device)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a prompt without that image."""
        picture_of(prompt, "control" if self.against == "map" else "image")

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one.

        Raises ValueError for a depth map that is black everywhere.
        """
        images = batch.outputs.images
        assert images is not None, "scoring checks needs"
        assert self._dpt is not None, "prepare comes before score"
        size = (int(images.shape[-2]), int(images.shape[-1]))
        with torch.no_grad():
            wanted = self._wanted(batch, size)  # [B, H, W]
        found = depth_of(self._dpt, images.clamp(0, 1))
        return -(found - wanted.to(found.device)).square().mean((1, 2))

    def _wanted(self, batch: RewardBatch, size: tuple[int, int]) -> Tensor:
        if self.against == "picture":
            return depth_of(self._dpt, sources_of(batch, "image", size))
        maps = sources_of(batch, "control", size).mean(1)
        if bool((maps.amax((1, 2)) == 0).any()):
            raise ValueError("a depth map is black everywhere; it must be light where something is near")
        return divided_by_largest(maps)
