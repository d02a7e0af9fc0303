"""The overlap of an answered track with the true one: one box for each frame."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, extract, read_literal, shown
from mmrl.parsing.coordinates import Box, Canvas

from ..base.answers import TagReward, is_number
from ..base.boxes import box_overlap, has_area
from ..base.detections import unfenced
from ..base.grounding import canvas_of, true_box

Units = Literal["canvas", "target"]
Track = list[Box | None]  # None: the object is not in sight


@dataclass(frozen=True)
class TrackingIou(TagReward):
    """The mean IoU of the answered boxes and those of `target.track`, frame by frame, in [0, 1].

    Li et al. 2025 (VideoChat-R1, arXiv 2504.06958; average overlap of GOT-10k). The answer is one list in the `tag`
    (None: the whole text) with one box for each frame, `[[x1, y1, x2, y2], ...]`, and `null` where the object is not in
    sight. A null scores 1 in a frame where the truth is null too, else 0. A box without area or with its corners in the
    wrong order scores 0 in its frame (the paper's code pays both corners swapped, whose area is above 0 again). A list
    of another length than the truth scores 0; in the paper both have 8 frames.

    Boxes of the target are in pixels of the frames, whose size is that of the prompt's first image. A prompt whose
    frames are a video has none: then `units: target` compares the numbers as they are written, as VideoChat-R1 does.
    """

    source: ClassVar[str] = "Li et al. 2025 (VideoChat-R1), arXiv 2504.06958"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.track"})
    batch_size: ClassVar[int | None] = None

    # unit of the answered numbers: that of the model on the prompt's image, or that of the target
    units: Units = "canvas"
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.units == "target":
            object.__setattr__(self, "needs", self.needs - {"canvases"})

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no list of boxes and nulls, or empty."""
        _true_track(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that is no track, or a prompt without an image.
        """
        assert batch.outputs.texts is not None, "scoring checks needs"
        scores = []
        for row, text in enumerate(batch.outputs.texts):
            true = _true_track(batch.prompts[row])
            canvas = canvas_of(batch, row) if self.units == "canvas" else None
            try:
                scores.append(mean_overlap(_read_track(text, self.tag, canvas, len(true)), true))
            except ParseError:
                scores.append(0.0)
        return torch.tensor(scores, dtype=torch.float32)


def mean_overlap(track: Track, true: Track) -> float:
    """Returns the mean over frames of the IoU of two tracks of one length; a frame where both have no box counts 1."""
    boxes = torch.tensor(
        [(box or (0.0,) * 4, other or (0.0,) * 4) for box, other in zip(track, true, strict=True)], dtype=torch.float64
    )
    is_pair = has_area(boxes).all(1)  # [F] of [F, 2, 4]
    unit = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    safe = torch.where(is_pair[:, None, None], boxes, unit)
    overlap = torch.where(is_pair, box_overlap(safe[:, 0], safe[:, 1], "iou"), 0.0)
    both_hidden = [box is None and other is None for box, other in zip(track, true, strict=True)]
    return float(torch.where(torch.tensor(both_hidden), 1.0, overlap).mean())


def _read_track(text: str, tag: str | None, canvas: Canvas | None, num_frames: int) -> Track:
    answer = read_literal(unfenced(extract(text, tag)).strip())
    if not isinstance(answer, list) or len(answer) != num_frames:
        raise ParseError(f"a track is a list of {num_frames} boxes, got {shown(str(answer))}")
    track: Track = []
    for box in answer:
        if box is None:
            track.append(None)
            continue
        if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
            raise ParseError(f"a box of a track is four numbers, got {shown(str(box))}")
        x1, y1, x2, y2 = map(float, box)
        track.append((x1, y1, x2, y2) if canvas is None else canvas.box_to_original((x1, y1, x2, y2)))
    return track


def _true_track(prompt: Prompt) -> Track:
    track = prompt.target["track"]
    if not isinstance(track, list | tuple) or not track:
        raise ValueError(f"target.track must be a list of boxes, one for each frame, got {track!r} for {prompt.text!r}")
    return [None if box is None else true_box(box, "a box of target.track", prompt) for box in track]
