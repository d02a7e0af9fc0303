"""What rewards of points and boxes share: the target and the answer, both in pixels of the original image."""

import math

import torch
from torch import Tensor

from mmrl.actions import CLICKS, DIALECTS, Action
from mmrl.answers import ParseError, extract, read_box
from mmrl.contracts import RewardBatch
from mmrl.coordinates import Canvas


def target_boxes(batch: RewardBatch) -> Tensor:
    """[B, 4] float64: `target.box` of each prompt, x1, y1, x2, y2.

    Raises ValueError where one is not four finite numbers with x1 < x2 and y1 < y2: no answer can be judged by it.
    """
    boxes = []
    for prompt in batch.prompts:
        box = prompt.target["box"]
        is_four = isinstance(box, list | tuple) and len(box) == 4
        if not is_four or not all(_is_number(side) for side in box) or not (box[0] < box[2] and box[1] < box[3]):
            raise ValueError(
                f"target.box must be [x1, y1, x2, y2] with x1 < x2 and y1 < y2, got {box!r} for {prompt.text!r}"
            )
        boxes.append([float(side) for side in box])
    return torch.tensor(boxes, dtype=torch.float64).view(-1, 4)


def answered_boxes(batch: RewardBatch, tag: str | None) -> Tensor:
    """[B, 4] float64: the one box in the `tag` of each text, its corners as written; zeros where there is none."""
    texts = batch.outputs.texts
    assert texts is not None, "scoring checks needs"
    boxes = [(0.0, 0.0, 0.0, 0.0)] * len(batch)
    for row, text in enumerate(texts):
        canvas = _canvas(batch, row)
        try:
            boxes[row] = canvas.box_to_original(read_box(extract(text, tag)))
        except ParseError:
            continue
    return torch.tensor(boxes, dtype=torch.float64).view(-1, 4)


def answered_clicks(batch: RewardBatch, tag: str | None) -> list[Action | None]:
    """B clicks: of any kind where the policy makes actions, else the one point or box in the `tag` of the text.

    None where the answer is not understood or is another action.
    """
    if batch.outputs.actions is not None:
        return [action if action and action.kind in CLICKS else None for action in batch.outputs.actions]
    assert batch.outputs.texts is not None, "scoring checks needs"
    clicks: list[Action | None] = []
    for row, text in enumerate(batch.outputs.texts):
        canvas = _canvas(batch, row)
        try:
            clicks.append(DIALECTS["plain"].parse(extract(text, tag), canvas))
        except ParseError:
            clicks.append(None)
    return clicks


def has_area(boxes: Tensor) -> Tensor:
    """[B] bool: x1 < x2 and y1 < y2 of boxes [B, 4]."""
    return (boxes[:, :2] < boxes[:, 2:]).all(1)


def _canvas(batch: RewardBatch, row: int) -> Canvas:
    assert batch.outputs.canvases is not None, "scoring checks needs"
    canvas = batch.outputs.canvases[row]
    if canvas is None:
        raise ValueError(f"the prompt {batch.prompts[row].text!r} has no image that coordinates could be of")
    return canvas


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
