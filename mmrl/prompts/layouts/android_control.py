"""Steps of AndroidControl, one a line: `screenshot`, `goal`, `action` with its `action_type` and arguments."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow

TEXTS = ("text", "direction", "app_name")  # of input_text, of scroll and swipe, of open_app


@dataclass(frozen=True)
class AndroidControl:
    """Steps whose prompt is the goal of the episode; `step_instruction`, `history` and other fields join the target.

    Li et al. 2024, arXiv 2406.03679: `x` and `y` are pixels of the screenshot. A scroll's direction, a text and the
    name of an app become `target.input_text`.
    """

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = ("screenshot", "goal", "action")

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["screenshot"]),)
        action = row_values.parsed(row.need("action"))
        if not isinstance(action, dict) or "action_type" not in action:
            raise BadRow(f"the field 'action' needs an object with 'action_type', got {action!r:.80}")
        target: dict[str, Any] = {"action": row_values.action(action["action_type"])}
        if "x" in action or "y" in action:
            target["point"] = row_values.point([action.get("x"), action.get("y")], "x, y", media[0].size)
        texts = [action[name] for name in TEXTS if action.get(name) not in (None, "")]
        if len(texts) > 1 or not all(isinstance(one, str) for one in texts):
            raise BadRow(f"an action has one of {', '.join(TEXTS)}, a text, got {action!r:.80}")
        return row.prompt(row.text("goal"), media, target | ({"input_text": texts[0]} if texts else {}))

    def row(self, example: Example) -> dict[str, Any]:
        x, y = example.point
        actions: tuple[dict[str, Any], ...] = (
            {"action_type": "click", "x": round(x), "y": round(y)},
            {"action_type": "scroll", "direction": "down"},
            {"action_type": "input_text", "text": example.answer},
            {"action_type": "navigate_back"},
            {"action_type": "open_app", "app_name": "Clock"},
        )
        return {
            "episode_id": example.number // 2,
            "step": example.number % 2,
            "goal": f"Open the {example.name}",
            "step_instruction": f"click on the {example.name}",
            "screenshot": example.image,
            "action": actions[example.number % len(actions)],
        }
