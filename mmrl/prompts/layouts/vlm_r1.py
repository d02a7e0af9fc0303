"""VLM-R1's jsonl: `image` (one or a list), `conversations` of human and gpt, optional `accu_reward_method`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.media.pictures import StoredPicture
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.messages import media_of, question
from mmrl.prompts.row import IMAGE_MARK, Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class VlmR1:
    """Conversations whose answer is gpt's turn. Four numbers are a box, a JSON list of `bbox_2d` and `label` boxes.

    Boxes are in pixels of the original image. A list in a text that fits no box on the image stays an answer.
    """

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = ("image", "conversations")

    def prompt(self, row: Row) -> Prompt:
        conversation = question(row.need("conversations"), "conversations")
        if conversation.answer is None:
            raise BadRow("its conversation has no answer of gpt")
        media = media_of(row, conversation, ("image", "images"))
        if not media and IMAGE_MARK in conversation.text:
            row.need("image")
        answer = row_values.answer(conversation.answer) or ""
        return row.prompt(
            conversation.text,
            media,
            {"answer": answer} | _located(conversation.answer, answer, media),
            conversation.system,
        )

    def row(self, example: Example) -> dict[str, Any]:
        said: Any = list(example.box) if example.number % 2 == 0 else str(list(example.box))
        return {
            "id": example.number,
            "image": example.image,
            "conversations": [
                {"from": "human", "value": f"<image>Please provide the bounding box of the {example.name}."},
                {"from": "gpt", "value": said},
            ],
        }


def _located(value: Any, answer: str, media: tuple[StoredPicture, ...]) -> dict[str, Any]:
    found = row_values.parsed(row_values.unfenced(answer))
    if not media or not isinstance(found, list) or not found:
        return {}
    size = media[0].size
    try:
        if all(isinstance(one, dict) and "bbox_2d" in one for one in found):
            boxes = [row_values.box(one["bbox_2d"], f"bbox_2d {n}", size) for n, one in enumerate(found, 1)]
            return row_values.detections(boxes, row_values.texts([one.get("label", "") for one in found], "label"))
        return {"box": row_values.box(found, "the box", size)}
    except BadRow:
        if isinstance(value, list) and len(value) == 4:  # written as numbers: it is meant as a box
            raise
        return {}
