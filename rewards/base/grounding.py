"""Points and boxes of targets and of answers, in pixels of the original image."""

from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.actions.action import CLICKS, Action
from mmrl.parsing.actions.dialects import DIALECTS
from mmrl.parsing.answers import ParseError, extract, read_box
from mmrl.parsing.coordinates import UNKNOWN_UNIT, Box, Canvas, Point

from .answers import is_number
from .references import composed


def target_boxes(batch: RewardBatch) -> Tensor:
    """Reads `target.box` of each prompt, [B, 4] float64, x1, y1, x2, y2.

    Raises ValueError where one is not four finite numbers with x1 < x2 and y1 < y2: no answer can be judged by it.
    """
    return torch.tensor(list(map(target_box, batch.prompts)), dtype=torch.float64).view(-1, 4)


def target_box(prompt: Prompt) -> Box:
    """Reads `target.box` of a prompt; raises ValueError as `target_boxes` does."""
    return true_box(prompt.target["box"], "target.box", prompt)


def target_detections(prompt: Prompt, has_labels: bool) -> tuple[list[Box], list[str] | None]:
    """Reads `target.boxes` of a prompt, which may be empty, and with `has_labels` its `target.labels`.

    Labels are composed (NFC). Raises ValueError where these are no boxes (`target_boxes`), or not one text for each.
    """
    given, labels = prompt.target["boxes"], prompt.target.get("labels")
    if not isinstance(given, list | tuple):
        raise ValueError(f"target.boxes must be a list of boxes, got {given!r} for {prompt.text!r}")
    boxes = [true_box(box, "a box of target.boxes", prompt) for box in given]
    if not has_labels:
        return boxes, None
    is_texts = isinstance(labels, list | tuple) and all(isinstance(label, str) for label in labels)
    if not is_texts or labels is None or len(labels) != len(boxes):
        raise ValueError(
            f"target.labels must be {len(boxes)} texts, one for each box, got {labels!r} for {prompt.text!r}"
        )
    return boxes, [composed(label) for label in labels]


def true_box(box: Any, name: str, prompt: Prompt) -> Box:
    """Reads a box of the target, x1, y1, x2, y2; raises ValueError, which begins with `name`, for anything else."""
    is_four = isinstance(box, list | tuple) and len(box) == 4
    if not is_four or not all(is_number(side) for side in box) or not (box[0] < box[2] and box[1] < box[3]):
        raise ValueError(f"{name} must be [x1, y1, x2, y2] with x1 < x2 and y1 < y2, got {box!r} for {prompt.text!r}")
    return float(box[0]), float(box[1]), float(box[2]), float(box[3])


def true_point(point: Any, name: str, prompt: Prompt) -> Point:
    """Reads a point of the target, x, y; raises ValueError, which begins with `name`, for anything else."""
    if not isinstance(point, list | tuple) or len(point) != 2 or not all(map(is_number, point)):
        raise ValueError(f"{name} must be [x, y], got {point!r} for {prompt.text!r}")
    return float(point[0]), float(point[1])


def answered_boxes(batch: RewardBatch, tag: str | None) -> Tensor:
    """Reads the one box in the `tag` of each text, [B, 4] float64, its corners as written.

    Zeros stand for a text without such a box.
    """
    texts = batch.outputs.texts
    assert texts is not None, "scoring checks needs"
    boxes = [(0.0, 0.0, 0.0, 0.0)] * len(batch)
    for row, text in enumerate(texts):
        canvas = canvas_of(batch, row)
        try:
            boxes[row] = canvas.box_to_original(read_box(extract(text, tag)))
        except ParseError:
            continue
    return torch.tensor(boxes, dtype=torch.float64).view(-1, 4)


def answered_clicks(batch: RewardBatch, tag: str | None) -> list[Action | None]:
    """Reads B clicks: the actions where the policy makes some, else the one point or box in the `tag` of each text.

    None where the answer is not understood or is another action.
    """
    if batch.outputs.actions is not None:
        return [action if action and action.kind in CLICKS else None for action in batch.outputs.actions]
    assert batch.outputs.texts is not None, "scoring checks needs"
    clicks: list[Action | None] = []
    for row, text in enumerate(batch.outputs.texts):
        canvas = canvas_of(batch, row)
        try:
            clicks.append(DIALECTS["plain"].parse(extract(text, tag), canvas))
        except ParseError:
            clicks.append(None)
    return clicks


def canvas_of(batch: RewardBatch, row: int) -> Canvas:
    """Returns the canvas of a sample.

    Raises ValueError for a prompt without an image, and ConfigError where the model's unit is not known.
    """
    assert batch.outputs.canvases is not None, "scoring checks needs"
    canvas = batch.outputs.canvases[row]
    if canvas is None:
        raise ValueError(f"the prompt {batch.prompts[row].text!r} has no image that coordinates could be of")
    if canvas.convention is None:
        raise ConfigError(UNKNOWN_UNIT)
    return canvas
