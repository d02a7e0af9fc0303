"""VLM-R1's detection jsonl: as its other rows, where gpt says a fenced JSON list of boxes and labels, or None."""

import json
from dataclasses import dataclass, replace
from typing import Any

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example
from mmrl.prompts.layouts.vlm_r1 import VlmR1
from mmrl.prompts.messages import question
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class VlmR1Ovd(VlmR1):
    """Detections in pixels of the original image; the target always has `boxes` and `labels`, which may be empty."""

    def prompt(self, row: Row) -> Prompt:
        said = question(row.values.get("conversations"), "conversations").answer
        answer = row_values.unfenced(row_values.answer(said) or "")
        found = [] if answer == "None" else row_values.parsed(answer)
        if not isinstance(found, list) or not all(isinstance(one, dict) and "bbox_2d" in one for one in found):
            raise BadRow(f"gpt must say a JSON list of objects with bbox_2d, or None, got {said!r:.80}")
        return super().prompt(row) if found else self._without_boxes(row)

    def _without_boxes(self, row: Row) -> Prompt:
        prompt = super().prompt(row)
        return replace(prompt, target={**prompt.target, "boxes": (), "labels": ()})

    def row(self, example: Example) -> dict[str, Any]:
        pairs = zip(example.boxes, example.names, strict=True)
        boxes = [{"bbox_2d": list(box), "label": name} for box, name in pairs][: 1 + example.number % 2]
        asked = f"<image>Please detect every {example.name}. If there is none, say None."
        return {
            "id": example.number,
            "image": example.image,
            "conversations": [
                {"from": "human", "value": asked},
                {"from": "gpt", "value": f"```json\n{json.dumps(boxes)}\n```"},
            ],
            "accu_reward_method": "odLength",
        }
