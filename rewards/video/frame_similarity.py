"""Does a video begin with the prompt's image, or end with it? One frame against the image, pixel by pixel."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.media.pictures import Role

from ..base.frames import frames_of
from ..base.sources import picture_of, sources_of


@dataclass
class FrameSimilarity(Checked):
    """1 - mean |frame - image| over pixels and channels, in [0, 1]: of image-to-video, whose first frame is given.

    VBench-I2V asks the same of embeddings (Huang et al. 2024, arXiv 2411.13503: video-image consistency); here pixels
    are compared, which needs no weights and punishes a shift. The image is resized (bicubic) to the size of the video,
    as pipelines do, but not cropped.
    """

    source: ClassVar[str] = "the form of video-image consistency of Huang et al. 2024, arXiv 2411.13503, on pixels"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"videos", "prompt.image"})
    batch_size: ClassVar[int | None] = None

    frame: Literal["first", "last"] = "first"  # `last`: against the image of the role `last_image`

    @property
    def _role(self) -> Role:
        return "image" if self.frame == "first" else "last_image"

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a prompt without that image."""
        picture_of(prompt, self._role)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32, with a gradient to the videos where they require one."""
        videos = frames_of(batch, fewest=1).clamp(0, 1)
        frame = videos[:, 0 if self.frame == "first" else -1]  # [B, 3, H, W]
        images = sources_of(batch, self._role, (int(frame.shape[-2]), int(frame.shape[-1])))
        return 1 - torch.mean((frame - images.to(frame.device)).abs(), (1, 2, 3))
