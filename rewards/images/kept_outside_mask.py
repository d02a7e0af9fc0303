"""Does an edit leave alone what it should? The picture before and after, outside of the mask."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt

from ..base.sources import masks_of, picture_of, sources_of


@dataclass(frozen=True)
class KeptOutsideMask:
    """1 - mean |image - source| over channels and the pixels where the prompt's mask is black, in [0, 1].

    The mean absolute distance to the source, L1 in MagicBrush (Zhang et al. 2023, arXiv 2306.10012), restricted to what
    is not to be edited. The source is resized (bicubic) to the size of the image, the mask by its nearest pixel; where
    both sizes are the same, nothing is resized. The pipeline need not be given the mask: it is enough that the
    data brings a mask. A mask that is white everywhere leaves nothing to compare: ValueError.
    """

    source: ClassVar[str] = "the L1 distance of Zhang et al. 2023 (MagicBrush), arXiv 2306.10012, outside of the mask"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "prompt.image"})
    batch_size: ClassVar[int | None] = None

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a prompt without a picture to edit or without a mask."""
        picture_of(prompt, "image"), picture_of(prompt, "mask")

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32, with a gradient to the images where they require one.

        Raises ValueError for a mask without a black pixel.
        """
        images = batch.outputs.images
        assert images is not None, "scoring checks needs"
        images, size = images.float(), (int(images.shape[-2]), int(images.shape[-1]))
        outside = 1 - masks_of(batch, size).to(images.device)  # [B, 1, H, W]
        count = outside.sum((1, 2, 3))  # [B]
        if bool((count == 0).any()):
            raise ValueError("a mask is white everywhere; it must be black where the picture is to stay as it is")
        distance = (images.clamp(0, 1) - sources_of(batch, "image", size).to(images.device)).abs()
        return 1 - (distance * outside).sum((1, 2, 3)) / (3 * count)
