"""Does an image have the edges that its prompt asks for? Its edges against a map, or against those of a picture."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.core.data import Prompt

from ..base.networks.checkpoints import check_suffix
from ..base.networks.edges import Edges, load_edges, write_tiny_edges
from ..base.sources import Source, check_source, compared_with


@dataclass
class EdgeConsistency(Checked):
    """-mean (e(x) - c)^2 over pixels; e(x) is the edges of the image, c those that the prompt asks for, 1 at an edge.

    The edge rewards of ControlNet++ (Li et al. 2024, arXiv 2404.07987, section 3.2; train/reward_control.py and
    utils.py), whose loss is its negative. `canny`: magnitudes of gradients that are the largest along their direction,
    without a threshold, so that the score is unbounded below. `hed` (Xie & Tu 2015, arXiv 1504.06375) and `lineart`
    (Chan et al. 2022, arXiv 2203.12691): networks, in [-1, 0].

    What is compared with: `given`, the same edges of the picture that the data brings for the prompt (theirs);
    `picture`, those of the prompt's picture to edit; `map`, the mean of the channels of the prompt's image of the role
    `control`, light at edges. A map of black and white asks canny for magnitudes of exactly 0 and 1. Prompts' images
    are resized (bicubic) to the size of the sample.

    Different: float32, and edges of HED are not rounded to 8 bits, which leaves the published code no gradient. The
    published weights of `lineart` are those of a space on the hub; that they are those of the default is not verified.
    """

    source: ClassVar[str] = "Li et al. 2024 (ControlNet++), arXiv 2404.07987; github.com/liming-ai/ControlNet_Plus_Plus"
    range: ClassVar[tuple[float, float]] = (float("-inf"), 0.0)  # of canny
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "prompt.image", "model"})
    batch_size: ClassVar[int | None] = 16
    license: ClassVar[License] = License("other", commercial=False)  # lllyasviel/Annotators; canny has no weights

    edges: Edges = "canny"  # what finds edges
    against: Source = "map"  # what is compared with: `map`, `picture` or `given`
    # hed, lineart: file of the weights, here or owner/repository/file on the hub; null: ControlNetHED.pth or
    # sk_model.pth of lllyasviel/Annotators. canny has none
    model: str | None = None
    _find: Callable[[Tensor], Tensor] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.edges != "canny":
            self.range = (-1.0, 0.0)  # type: ignore[misc]  # of this one, not of the class
        if self.against == "given":
            self.needs = frozenset({"images", "target.given", "model"})  # type: ignore[misc]  # of this one
        if self.model is not None:
            if self.edges == "canny":
                raise ValueError(f"model is of hed and lineart, got {self.model!r} with edges 'canny'")
            check_suffix("model", self.model)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on random weights of the published shapes, written to `folder`."""
        return self if self.edges == "canny" else replace(self, model=str(write_tiny_edges(self.edges, folder, seed)))

    def prepare(self, placement: Placement) -> None:
        """Loads the network, if there is one; raises ConfigError where it cannot be loaded."""
        self._find = load_edges(self.edges, self.model, placement.device)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a prompt without the image to compare with."""
        check_source(prompt, self.against)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one."""
        images = batch.outputs.images
        assert images is not None, "scoring checks needs"
        assert self._find is not None, "prepare comes before score"
        with torch.no_grad():
            others = compared_with(batch, self.against, (int(images.shape[-2]), int(images.shape[-1])))
            wanted = others.mean(1) if self.against == "map" else self._find(others)  # [B, H, W]
        found = self._find(images)
        return -(found - wanted.to(found.device)).square().mean((1, 2))
