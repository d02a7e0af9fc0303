"""A list of one dictionary in `<answer>` tags: `[{'action': 'click', 'point': [x, y], 'input_text': '...'}]`.

Luo et al. 2025 (GUI-R1, arXiv 2504.10458); `coordinate` may stand for `point`. The text of an action is its direction,
keys, application or what is typed. Thoughts stand before the tags.
"""

import json

from mmrl.parsing.actions.action import CLICKS, Action, Direction, Kind
from mmrl.parsing.actions.dialect import Dialect
from mmrl.parsing.actions.names import PRESS, keys_of, named
from mmrl.parsing.answers import ParseError, extract, read_literal, shown
from mmrl.parsing.coordinates import Canvas, Point, format_point

_NAMES: dict[Kind, str] = {
    **{"double_click": "doubleclick", "right_click": "rightclick", "move": "moveto", "open": "open_app"},
    **{"finish": "complete"},
}
_DIRECTIONS: dict[str, Direction] = {"up": "up", "down": "down", "left": "left", "right": "right"}
VOCABULARY: dict[Kind, str] = {
    **{kind: "point" for kind in sorted(CLICKS)},
    **{"move": "point", "scroll": "direction", "type": "text", "open": "text", "answer": "text", "hotkey": "keys"},
    **{"wait": "", "finish": ""},
}
NO_TEXT = "no input text"
_NO_POINT = [-100, -100]
Fields = dict[str, object]


def read(text: str, canvas: Canvas) -> Action:
    """The action of the one dictionary in the answer; `coordinate` and `point` are the same."""
    return action_of(dictionary(text), canvas)


def dictionary(text: str) -> Fields:
    """The one dictionary in the answer, which has an action by name."""
    found = read_literal(extract(text, "answer").strip())
    found = found[0] if isinstance(found, list) and len(found) == 1 else found
    if not isinstance(found, dict) or not isinstance(found.get("action"), str):
        raise ParseError(f"an answer is a list of one dictionary with an action, got {shown(str(found))}")
    return found


def kind_of(found: Fields) -> tuple[Kind, tuple[str, ...]]:
    """The kind that a dictionary names, and the keys that it presses."""
    meant = named(str(found["action"]))
    if meant is None or meant[0] == "drag":
        raise ParseError(f"no action {shown(str(found['action']))}; known are {', '.join(VOCABULARY)}")
    return meant


def action_of(found: Fields, canvas: Canvas) -> Action:
    """The action of a dictionary, with all that it needs."""
    kind, keys = kind_of(found)
    if kind in CLICKS or kind == "move":
        return Action(kind, point=canvas.point_to_original(_point(found)))
    if kind == "scroll":
        return Action(kind, direction=_DIRECTIONS.get(_text(found).strip().lower()))
    if kind == "hotkey":
        return Action(kind, keys=keys or keys_of(_text(found)))
    return Action(kind) if kind in ("wait", "finish") else Action(kind, text=_text(found))


def _point(found: Fields) -> Point:
    if "point" in found and "coordinate" in found:
        raise ParseError("an action has a point or a coordinate, got both")
    value = found.get("point", found.get("coordinate"))
    if not isinstance(value, list) or len(value) != 2:
        raise ParseError(f"a point is [x, y], got {shown(str(value))}")
    x, y = value
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in (x, y)):
        raise ParseError(f"a point has two numbers, got {shown(str(value))}")
    return float(x), float(y)


def _text(found: Fields) -> str:
    value = found.get("input_text")
    if not isinstance(value, str) or value.strip().lower() == NO_TEXT:
        raise ParseError(f"this action needs an input_text, got {shown(str(value))}")
    return value


def words(action: Action, canvas: Canvas) -> str:
    found = fields_of(action, canvas)
    return spelled(found if found["input_text"] is not None else {**found, "input_text": NO_TEXT})


def fields_of(action: Action, canvas: Canvas) -> Fields:
    """What a dictionary says of an action: its name, point and text, None where it has none."""
    name, point, text = _NAMES.get(action.kind, action.kind), _NO_POINT, action.text or action.direction
    if action.point is not None:
        point = json.loads(f"[{format_point(action.point, canvas)}]")
    if action.kind == "hotkey" and not action.is_kind_only:
        is_one = len(action.keys) == 1
        name, text = (PRESS + action.keys[0], None) if is_one else (name, " ".join(action.keys))
    if action.text is not None:
        text = action.text
    return {"action": name, "point": point, "input_text": text}


def spelled(found: Fields) -> str:
    """The list of one dictionary in its tags."""
    body = json.dumps([found], ensure_ascii=False)
    for tag in ("<answer>", "</answer>"):  # in typed text they would look like the tags around the answer
        body = body.replace(tag, "\\u003c" + tag[1:])
    return f"<answer>{body}</answer>"


def prompt(canvas: Canvas) -> str:
    return (
        "Answer with the next action as a list of one dictionary in <answer> tags, such as "
        "<answer>[{'action': 'click', 'point': [x, y], 'input_text': 'no input text'}]</answer>. "
        f"In a point {canvas.range_in_words}; actions without one have [-100, -100]. The actions are click, "
        "doubleclick, rightclick, long_press and moveto (point), type, open_app and answer (input_text), scroll "
        "(input_text: up, down, left or right), hotkey (input_text: keys with spaces between), press_back, press_home, "
        "press_enter, wait and complete."
    )


DIALECT = Dialect(read, VOCABULARY, words, prompt)
