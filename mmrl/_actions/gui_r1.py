"""A list of one dictionary in `<answer>` tags: `[{'action': 'click', 'point': [x, y], 'input_text': '...'}]`.

Luo et al. 2025 (GUI-R1, arXiv 2504.10458); Lu et al. 2025 (UI-R1, arXiv 2503.21620) write `coordinate` for the point.
The text of an action is its direction, keys, application or what is typed. Thoughts stand before the tags.
"""

import json

from mmrl._actions.action import CLICKS, Action, Direction, Kind
from mmrl._actions.dialect import Dialect
from mmrl._actions.names import PRESS, keys_of, named
from mmrl.answers import ParseError, extract, read_literal, shown
from mmrl.coordinates import Canvas, Point, format_point

_NAMES: dict[Kind, str] = {
    **{"double_click": "doubleclick", "right_click": "rightclick", "move": "moveto", "open": "open_app"},
    **{"finish": "complete"},
}
_DIRECTIONS: dict[str, Direction] = {"up": "up", "down": "down", "left": "left", "right": "right"}
_SAYS: dict[Kind, str] = {
    **{kind: "point" for kind in sorted(CLICKS)},
    **{"move": "point", "scroll": "direction", "type": "text", "open": "text", "answer": "text", "hotkey": "keys"},
    **{"wait": "", "finish": ""},
}
_NO_TEXT = "no input text"
_NO_POINT = [-100, -100]
Fields = dict[str, object]


def read(text: str, canvas: Canvas) -> Action:
    """The action of the one dictionary in the answer; `coordinate` and `point` are the same."""
    found = read_literal(extract(text, "answer").strip())
    found = found[0] if isinstance(found, list) and len(found) == 1 else found
    if not isinstance(found, dict) or not isinstance(found.get("action"), str):
        raise ParseError(f"an answer is a list of one dictionary with an action, got {shown(str(found))}")
    meant = named(found["action"])
    if meant is None or meant[0] == "drag":
        raise ParseError(f"no action {shown(found['action'])}; known are {', '.join(_SAYS)}")
    kind, keys = meant
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
    if not isinstance(value, str) or value.strip().lower() == _NO_TEXT:
        raise ParseError(f"this action needs an input_text, got {shown(str(value))}")
    return value


def words(action: Action, canvas: Canvas) -> str:
    name, point, text = _NAMES.get(action.kind, action.kind), _NO_POINT, action.text or action.direction
    if action.point is not None:
        point = json.loads(f"[{format_point(action.point, canvas)}]")
    if action.kind == "hotkey":
        is_one = len(action.keys) == 1
        name, text = (PRESS + action.keys[0], None) if is_one else (name, " ".join(action.keys))
    if action.text is not None:
        text = action.text
    body = json.dumps(
        [{"action": name, "point": point, "input_text": _NO_TEXT if text is None else text}], ensure_ascii=False
    )
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


DIALECT = Dialect(read, _SAYS, words, prompt)
