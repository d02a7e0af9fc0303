"""AgentCPM-GUI's data: `image`, `conversations` whose last turn is the action in compact JSON."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.parsing.actions.action import Action
from mmrl.parsing.actions.agentcpm import DIALECT
from mmrl.parsing.actions.names import PRESS
from mmrl.parsing.answers import ParseError
from mmrl.parsing.coordinates import Canvas
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.messages import question
from mmrl.prompts.row import IMAGE_MARK, Row
from mmrl.prompts.row_pictures import BadRow

MARK = re.compile(r"<image_\d{2}>")


@dataclass(frozen=True)
class AgentcpmGui:
    """Steps on a screenshot, as its `sft/finetune` reads them: points in 0..1000, swipes by the way of the finger.

    `image` is a path, or paths by their marks (`<image_00>`). A true click is a point: its box is not published. The
    direction of a scroll in the target is that of the view.
    """

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("image", "conversations")

    def prompt(self, row: Row) -> Prompt:
        given = row.values.get("image")
        if isinstance(given, Mapping) and given and all(MARK.fullmatch(str(mark)) for mark in given):
            row.values["image"] = [given[mark] for mark in sorted(given)]
        media = (row.needed_image(["image", "images"]),)
        conversation = question(row.need("conversations"), "conversations")
        if not isinstance(conversation.answer, str):
            raise BadRow("its conversation has no answer of the assistant")
        size = media[0].size
        try:
            action = DIALECT.parse(conversation.answer, Canvas(size, size, "thousand"))
        except ParseError as error:
            raise BadRow(f"its action cannot be read: {error}") from error
        text = MARK.sub(IMAGE_MARK, conversation.text)
        return row.prompt(text, media, target_of(action), conversation.system)

    def row(self, example: Example) -> dict[str, Any]:
        (width, height), (x, y) = example.size, example.point
        point = f"[{round(x * 1000 / width)},{round(y * 1000 / height)}]"
        actions = (
            f'{{"POINT":{point}}}',
            f'{{"POINT":{point},"to":"up"}}',
            f'{{"TYPE":"{example.answer}"}}',
            '{"PRESS":"BACK"}',
            '{"STATUS":"finish"}',
        )
        return {
            "id": str(example.number),
            "image": {"<image_00>": example.image},
            "conversations": [
                {"role": "system", "content": "You act on a phone. Answer in compact JSON."},
                {"role": "user", "content": f"<Question>Open the {example.name}</Question>\nThe screen: <image_00>"},
                {"role": "assistant", "content": actions[example.number % len(actions)]},
            ],
        }


def target_of(action: Action) -> dict[str, Any]:
    """Returns the fields of the target that say which action is right."""
    if action.kind == "hotkey":
        return {"action": f"{PRESS}{action.keys[0]}"}
    text = action.direction or (action.text if action.kind == "type" else None)
    point = action.point if action.kind in ("click", "long_press") else None
    return {"action": action.kind, "point": point, "input_text": text}
