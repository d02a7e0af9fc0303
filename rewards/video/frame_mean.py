"""Any reward of images for videos: the mean over frames."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.keys import generator

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

    `segments` judges one random frame of each of S equal parts instead (InstructVideo's segmental video reward, as in
    temporal segment networks, Wang et al. 2016, arXiv 1608.00859); all where the video has fewer. The frames of a
    sample follow from its own seed, so a resumed run judges the same ones. `attenuation` multiplies the score of frame
    g by exp(-attenuation |g - floor(F / 2)|) before the mean (InstructVideo's temporally attenuated reward, against a
    loss of motion): frames far from the middle count less. It belongs to `mean`. The factors do not sum to S, as in
    their code, so scores are smaller with it.

    Range, needs (videos in place of images) and gradient are those of the inner reward. A batch of frames is no larger
    than the inner reward's `batch_size`.
    """

    reward: Reward  # a reward of images, such as {name: clip_score}
    frames: Annotated[int, Field(ge=1)] | None = None  # frames of a video that are judged; null: all
    reduction: Reduction = "mean"  # how the scores of frames become one
    segments: Annotated[int, Field(ge=1)] | None = None  # one random frame of each of so many parts; null: see `frames`
    attenuation: Annotated[float, Field(ge=0)] = 0.0  # of scores, for each frame of distance from the middle; 0: none

    source: ClassVar[str] = (
        "Xue et al. 2025, arXiv 2505.07818; Liu et al. 2025, arXiv 2505.05470; Yuan et al. 2023, arXiv 2312.12490"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"videos"})  # beside those of the inner reward

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = self.reward
        if "images" not in inner.needs or "videos" in inner.needs:
            raise ValueError(
                f"the inner reward must judge images, got one that needs {', '.join(sorted(inner.needs)) or 'nothing'}"
            )
        check_judges_samples(inner)
        if self.segments is not None and self.frames is not None:
            raise ValueError("frames and segments both say which frames are judged; leave one out")
        if self.attenuation and self.reduction != "mean":
            raise ValueError(f"attenuation belongs to reduction 'mean', got {self.reduction!r}")
        # a factor of at most 1 brings scores nearer to 0
        low, high = inner.range if not self.attenuation else (min(0.0, inner.range[0]), max(0.0, inner.range[1]))
        self.override(
            range=(low, high),
            differentiable=inner.differentiable,
            needs=(inner.needs - {"images"}) | {"videos"},
        )

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that of the inner reward; with `segments` the frames are those of a sample's own seed."""
        inner = super().declaration
        return replace(inner, is_changing=inner.is_changing or self.segments is not None)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for videos without frames or with NaN, and what the inner reward raises.
        """
        videos = frames_of(batch, fewest=1)
        num_frames = videos.shape[1]
        places = self._places(batch, num_frames)  # [B, n]
        chosen = videos[torch.arange(len(batch))[:, None], places]  # [B, n, 3, H, W]
        size = self.reward.batch_size or max(1, chosen.shape[0] * chosen.shape[1])
        rows = torch.arange(len(batch)).repeat_interleave(chosen.shape[1])  # whose frame each is
        parts = zip(chosen.flatten(0, 1).split(size), rows.split(size), strict=True)
        values = torch.cat([self.reward.score(_as_images(batch, frames, whose)) for frames, whose in parts])
        values = values.view(chosen.shape[:2])  # [B, n]
        if self.attenuation:
            values = values * attenuated(places, num_frames, self.attenuation).to(values)
        if self.reduction == "mean":
            return values.mean(1)
        return values.amin(1) if self.reduction == "min" else values.quantile(0.5, dim=1)

    def _places(self, batch: RewardBatch, num_frames: int) -> Tensor:
        """Returns the numbers of the frames that are judged, [B, n] int64 ascending."""
        wanted = self.segments or self.frames
        if wanted is None or wanted >= num_frames:
            places = [list(range(num_frames))] * len(batch)
        elif self.segments is None:  # the middle of each of `frames` equal parts
            places = [[(2 * part + 1) * num_frames // (2 * wanted) for part in range(wanted)]] * len(batch)
        else:
            places = [_one_of_each(num_frames, wanted, seed) for seed in batch.seeds]
        return torch.tensor(places, dtype=torch.int64).view(len(batch), -1)


def attenuated(places: Tensor, num_frames: int, rate: float) -> Tensor:
    """Returns exp(-rate |g - floor(F / 2)|) of the frames g, `places` [...], of a video of F frames: [...] float32.

    Yuan et al. 2023, "InstructVideo: Instructing Video Diffusion Models with Human Feedback", arXiv 2312.12490, the
    temporally attenuated reward.
    """
    return torch.exp(-rate * (places - num_frames // 2).abs().float())


def _one_of_each(num_frames: int, segments: int, seed: int) -> list[int]:
    """Returns one frame of each of `segments` parts of a video, all frames of a part as likely."""
    source = generator(seed, "segments")
    ends = [part * num_frames // segments for part in range(segments + 1)]
    return [int(torch.randint(first, end, (), generator=source)) for first, end in pairwise(ends)]


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
