"""Any reward of images for videos: asked about frames, one by one."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch

from ..base.frames import frames_of
from ..base.wrapper import RewardWrapper, check_judges_samples

Reduction = Literal["mean", "min", "median"]


@dataclass(frozen=True)
class FrameMean(RewardWrapper):
    """The mean over frames of what `reward`, a reward of images, says of each frame as an image of its own.

    As DanceGRPO and Flow-GRPO judge videos by rewards of images, such as the text that is to be read in them. `min` is
    the worst frame, so that a video that is good for most of its time does not pass, `median` the middle frame, or
    the mean of both middle ones. Of F frames, `frames` (None: all) are asked: the middle ones of as many equal parts,
    floor((i + 1/2) F / frames); all where the video has fewer. Gradients reach the frames that were asked; those of
    `min` and `median` the one or two that count.

    Range, what is needed (videos in place of images) and whether there is a gradient are those of the reward held;
    unbounded until one is held. Not more frames are asked at once than that reward wants.
    """

    reward: Reward  # such as {name: clip_score}
    frames: int | None = None  # at least 1
    reduction: Reduction = "mean"

    source: ClassVar[str] = "Xue et al. 2025, arXiv 2505.07818; Liu et al. 2025, arXiv 2505.05470"
    range: ClassVar[tuple[float, float]] = (float("-inf"), float("inf"))
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"videos"})  # beside those of the reward that it holds
    batch_size: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        inner = self.reward
        if "images" not in inner.needs or "videos" in inner.needs:
            raise ValueError(
                f"the reward held must judge images, got one that needs {', '.join(sorted(inner.needs)) or 'nothing'}"
            )
        check_judges_samples(inner)
        if self.frames is not None and self.frames < 1:
            raise ValueError(f"frames must be at least 1, or null for all, got {self.frames}")
        self.override(
            range=inner.range,
            differentiable=inner.differentiable,
            needs=(inner.needs - {"images"}) | {"videos"},
        )

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError for videos without frames or with NaN, and what the reward held raises."""
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
    """Which frames are asked: the middle of each of `wanted` equal parts of the video."""
    if wanted is None or wanted >= num_frames:
        return list(range(num_frames))
    return [(2 * part + 1) * num_frames // (2 * wanted) for part in range(wanted)]


def _as_images(batch: RewardBatch, frames: Tensor, rows: Tensor) -> RewardBatch:
    """The frames [n, 3, H, W] of the videos `rows` [n] as n images that answer the same prompts."""
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
