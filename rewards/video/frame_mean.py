"""Any reward of images for videos: the mean over frames."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch

from ..base.frames import frames_of
from ..base.wrapper import RewardWrapper, check_judges_samples

Reduction = Literal["mean", "min", "median"]


@dataclass(frozen=True)
class FrameMean(RewardWrapper):
    """The mean over frames of the scores that `reward`, a reward of images, gives each frame as an image of its own.

    DanceGRPO and Flow-GRPO judge videos in this way, for instance by the text in them. `min` is the worst frame, so
    that a video that is good for most of its time does not pass, `median` the middle frame, or the mean of both middle
    ones. Of F frames, `frames` (None: all) are judged: the middle ones of as many equal parts, floor((i + 1/2) F /
    frames); all where the video has fewer. Gradients reach the judged frames; those of `min` and `median` the one or
    two that count.

    Range, needs (videos in place of images) and gradient are those of the inner reward. A batch of frames is no larger
    than the inner reward's `batch_size`.
    """

    reward: Reward  # a reward of images, such as {name: clip_score}
    frames: Annotated[int, Field(ge=1)] | None = None  # frames of a video that are judged; null: all
    reduction: Reduction = "mean"  # how the scores of frames become one

    source: ClassVar[str] = "Xue et al. 2025, arXiv 2505.07818; Liu et al. 2025, arXiv 2505.05470"
    range: ClassVar[tuple[float, float]] = (float("-inf"), float("inf"))
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"videos"})  # beside those of the inner reward
    batch_size: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = self.reward
        if "images" not in inner.needs or "videos" in inner.needs:
            raise ValueError(
                f"the inner reward must judge images, got one that needs {', '.join(sorted(inner.needs)) or 'nothing'}"
            )
        check_judges_samples(inner)
        self.override(
            range=inner.range,
            differentiable=inner.differentiable,
            needs=(inner.needs - {"images"}) | {"videos"},
        )

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for videos without frames or with NaN, and what the inner reward raises.
        """
        videos = frames_of(batch, fewest=1)
        chosen = videos[:, _places(videos.shape[1], self.frames)]  # [B, n, 3, H, W]
        size = self.reward.batch_size or max(1, chosen.shape[0] * chosen.shape[1])
        rows = torch.arange(len(batch)).repeat_interleave(chosen.shape[1])  # whose frame each is
        parts = zip(chosen.flatten(0, 1).split(size), rows.split(size), strict=True)
        values = torch.cat([self.reward.score(_as_images(batch, frames, whose)) for frames, whose in parts])
        values = values.view(chosen.shape[:2])  # [B, n]
        if self.reduction == "mean":
            return values.mean(1)
        return values.amin(1) if self.reduction == "min" else values.quantile(0.5, dim=1)


def _places(num_frames: int, wanted: int | None) -> list[int]:
    """Returns the numbers of the frames that are judged: the middle of each of `wanted` equal parts of the video."""
    if wanted is None or wanted >= num_frames:
        return list(range(num_frames))
    return [(2 * part + 1) * num_frames // (2 * wanted) for part in range(wanted)]


def _as_images(batch: RewardBatch, frames: Tensor, rows: Tensor) -> RewardBatch:
    """Returns the frames [n, 3, H, W] of the videos `rows` [n] as n images that answer the same prompts."""
    chosen = rows.tolist()
    return replace(
        batch,
        prompts=tuple(batch.prompts[row] for row in chosen),
        outputs=replace(replace(batch.outputs, videos=None).select(rows), images=frames),
        group=batch.group[rows],
        episode=batch.episode[rows],
        turn=batch.turn[rows],
        seeds=tuple(batch.seeds[row] for row in chosen),
        is_control=None if batch.is_control is None else batch.is_control[rows],
    )
