"""Does anything move in a video? The largest optical flow between its frames against a threshold."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch

from ..base.frames import frames_of
from ..base.networks.checkpoints import check_suffix
from ..base.networks.optical_flow import SMALLEST, flow_between, load_raft, write_tiny_raft

FPS = 8  # frames a second that are judged
SHARE = 0.05  # of pixels: those that move most
THRESHOLD, SIDE = 6.0, 256  # pixels of motion from frame to frame, in frames of that shorter side
PAIRS = 8  # pairs of frames whose flow is computed at once


@dataclass
class DynamicDegree(Checked):
    """Whether enough pairs of frames move: 1 where at least round(n / 4) pairs of n frames have m > threshold, else 0.

    VBench's dynamic degree (Huang et al. 2023, arXiv 2311.17982, section 3.1; vbench/dynamic_degree.py). m is the mean
    of the largest 5% of the lengths of RAFT's flow (Teed and Deng 2020, arXiv 2003.12039) from one judged frame to the
    next; frames are judged at about 8 a second, every max(1, round(fps / 8))-th. threshold = 6 min(H, W) / 256
    pixels, also of slower videos, whose frames are further apart.

    `ratio` is the continuous form, in [0, 1]: min(1, m_k / threshold), m_k the k-th largest m and k the number of pairs
    that must move. It reaches 1 where `binary` has 1, and is no formula of VBench. No gradient: RAFT stops it between
    its updates.

    Different: two judged frames must move too (round(2 / 4) is 0 there, and any such video is dynamic); frames whose
    shorter side is below 128 pixels are enlarged to 128 first (bilinear), where RAFT cannot judge them; frames are not
    rounded to 8 bits. torchvision's weights C_T_V1 are VBench's raft-things.pth ported to its names, trained on
    FlyingChairs and FlyingThings3D; its newer C_T_V2 were trained again on the same, C_T_SKHT on more, and a threshold
    was never set for these.
    """

    source: ClassVar[str] = "Huang et al. 2023 (VBench), arXiv 2311.17982; github.com/Vchitect/VBench"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"videos", "model"})
    batch_size: ClassVar[int | None] = 4
    license: ClassVar[License] = License("BSD-3-Clause", commercial=True)  # princeton-vl/RAFT

    form: Literal["binary", "ratio"] = "binary"  # VBench's answer of yes or no, or how near a video comes to yes
    video_fps: Annotated[float, Field(gt=0)] = 16.0  # frames a second of clips that do not say theirs; Wan's
    # file of RAFT large with torchvision's names, here or owner/repository/file on the hub; null: torchvision's C_T_V1
    weights: str | None = None
    num_updates: Annotated[int, Field(ge=1)] = 20  # steps in which RAFT improves its flow; VBench's number
    _raft: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights is not None:
            check_suffix("weights", self.weights)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random narrow RAFT of two updates, written to `folder`."""
        return replace(self, weights=str(write_tiny_raft(folder, seed)), num_updates=2)

    def prepare(self, placement: Placement) -> None:
        """Loads the network; raises ConfigError where its weights are missing or do not fit."""
        self._raft = load_raft(self.weights, placement.device)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for videos of which fewer than two frames are judged, and for NaN or infinity.
        """
        assert self._raft is not None, "prepare comes before score"
        videos = frames_of(batch, fewest=2).detach().clamp(0, 1)
        rates = batch.outputs.fps or (self.video_fps,) * len(batch)
        ratios = torch.stack([self._ratio(frames, fps) for frames, fps in zip(videos, rates, strict=True)])
        return (ratios > 1).float() if self.form == "binary" else ratios.clamp_max(1)

    def _ratio(self, frames: Tensor, fps: float) -> Tensor:
        """Returns m_k / threshold of the frames [F, 3, H, W] of one video."""
        judged = frames[:: max(1, round(fps / FPS))]
        if len(judged) < 2:
            raise ValueError(f"needs two frames at {FPS} a second, got {len(frames)} frames at {fps} a second")
        judged = _enlarged(judged).to(next(self._raft.parameters()).device)
        threshold = THRESHOLD * min(judged.shape[-2:]) / SIDE
        pairs = zip(judged[:-1].split(PAIRS), judged[1:].split(PAIRS), strict=True)
        moved = torch.cat([largest_motion(flow_between(self._raft, *pair, self.num_updates)) for pair in pairs])
        needed = max(1, round(len(judged) / 4))
        ratio: Tensor = moved.sort(descending=True).values[needed - 1] / threshold
        return ratio


def largest_motion(flow: Tensor) -> Tensor:
    """Returns the mean length [B] of the longest 5% of the vectors of flow [B, 2, H, W]."""
    lengths: Tensor = flow.norm(dim=1).flatten(1)  # [B, H * W]
    return lengths.topk(int(lengths.shape[1] * SHARE), dim=1).values.mean(1)


def _enlarged(frames: Tensor) -> Tensor:
    if min(frames.shape[-2:]) >= SMALLEST:
        return frames
    from torchvision.transforms.v2.functional import InterpolationMode, resize

    result: Tensor = resize(frames, [SMALLEST], interpolation=InterpolationMode.BILINEAR, antialias=False)
    return result
