"""The size of an image as a JPEG file: a reward that needs no model."""

import io
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from PIL import Image
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch

from ..base.networks.resizing import check_finite


@dataclass(frozen=True)
class JpegSize(Checked):
    """The size in kB (1000 bytes) of the image saved as JPEG, negative for `compressible`: both rewards of DDPO.

    Black et al. 2023 (arXiv 2305.13301, section 5.1; github.com/kvablack/ddpo-pytorch). flow_grpo's compressibility is
    this divided by 500: weight 0.002. The range is unbounded on the far side, since a file grows with its image; the
    near end is 0.
    """

    source: ClassVar[str] = "Black et al. 2023 (DDPO), arXiv 2305.13301"
    range: ClassVar[tuple[float, float]] = (float("-inf"), 0.0)  # of the default; (0, inf) for large files
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images"})
    batch_size: ClassVar[int | None] = None

    compressible: bool = True  # whether small files are rewarded; false rewards large ones
    quality: Annotated[int, Field(ge=1, le=100)] = 95  # Pillow's JPEG quality; DDPO's

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.compressible:
            object.__setattr__(self, "range", (0.0, float("inf")))  # of this one, not of the class

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32, kB; raises ValueError for an image that holds NaN or infinity."""
        images = batch.outputs.images
        assert images is not None, "scoring checks needs"
        # one by one: each image is still in the cache when it is encoded
        sizes = torch.tensor([self._num_bytes(image) / 1000 for image in images], dtype=torch.float32)
        return -sizes if self.compressible else sizes

    def _num_bytes(self, image: Tensor) -> int:
        """Returns the bytes of the JPEG file of an image [3, H, W] in [0, 1]."""
        check_finite(image)
        levels = (image.float() * 255).round().clamp(0, 255).to("cpu", torch.uint8)
        buffer = io.BytesIO()
        Image.fromarray(levels.permute(1, 2, 0).contiguous().numpy()).save(buffer, format="JPEG", quality=self.quality)
        return buffer.tell()
