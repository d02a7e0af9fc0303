"""GUI-R1's dialect: a list of one dictionary in tags, `<answer>[{'action': 'click', 'point': [x, y], ...}]</answer>`.

Luo et al. 2025 (GUI-R1, arXiv 2504.10458). `coordinate` may stand for `point`. `input_text` is the direction, the keys,
the application or the typed text of an action. Thoughts stand before the tags.
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
    """Returns the action of the one dictionary in the answer."""
    return action_of(dictionary(text), canvas)


def dictionary(text: str) -> Fields:
    """Returns the one dictionary in the answer. Raises ParseError for one without a named action."""
    value = read_literal(extract(text, "answer").strip())
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(value, dict) or not isinstance(value.get("action"), str):
        raise ParseError(f"an answer is a list of one dictionary with an action, got {shown(str(value))}")
    return value


def kind_of(written: Fields) -> tuple[Kind, tuple[str, ...]]:
    """Returns the kind that a dictionary names, and the keys that the name implies."""
    kind_and_keys = named(str(written["action"]))
    if kind_and_keys is None or kind_and_keys[0] == "drag":
        raise ParseError(f"no action {shown(str(written['action']))}; known are {', '.join(VOCABULARY)}")
    return kind_and_keys


def action_of(written: Fields, canvas: Canvas) -> Action:
    """Returns the action of a dictionary with all parts that the action needs."""
    kind, keys = kind_of(written)
    if kind in CLICKS or kind == "move":
        return Action(kind, point=canvas.point_to_original(_point(written)))
    if kind == "scroll":
        return Action(kind, direction=_DIRECTIONS.get(_text(written).strip().lower()))
    if kind == "hotkey":
        return Action(kind, keys=keys or keys_of(_text(written)))
    return Action(kind) if kind in ("wait", "finish") else Action(kind, text=_text(written))


def _point(written: Fields) -> Point:
    if "point" in written and "coordinate" in written:
        raise ParseError("an action has a point or a coordinate, got both")
    value = written.get("point", written.get("coordinate"))
    if not isinstance(value, list) or len(value) != 2:
        raise ParseError(f"a point is [x, y], got {shown(str(value))}")
    x, y = value
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in (x, y)):
        raise ParseError(f"a point has two numbers, got {shown(str(value))}")
    return float(x), float(y)


def _text(written: Fields) -> str:
    value = written.get("input_text")
    if not isinstance(value, str) or value.strip().lower() == NO_TEXT:
        raise ParseError(f"this action needs an input_text, got {shown(str(value))}")
    return value


def words(action: Action, canvas: Canvas) -> str:
    """Returns an action as text."""
    fields = fields_of(action, canvas)
    return spelled(fields if fields["input_text"] is not None else {**fields, "input_text": NO_TEXT})


def fields_of(action: Action, canvas: Canvas) -> Fields:
    """Returns the name, the point and the text of an action for a dictionary; None where it has no text."""
    name, point, text = _NAMES.get(action.kind, action.kind), _NO_POINT, action.text or action.direction
    if action.point is not None:
        point = json.loads(f"[{format_point(action.point, canvas)}]")
    if action.kind == "hotkey" and not action.is_kind_only:
        is_one = len(action.keys) == 1
        name, text = (PRESS + action.keys[0], None) if is_one else (name, " ".join(action.keys))
    if action.text is not None:
        text = action.text
    return {"action": name, "point": point, "input_text": text}


def spelled(fields: Fields) -> str:
    """Returns a list of one dictionary in its tags, as text."""
    body = json.dumps([fields], ensure_ascii=False)
    for tag in ("<answer>", "</answer>"):  # in typed text they would look like the tags around the answer
        body = body.replace(tag, "\\u003c" + tag[1:])
    return f"<answer>{body}</answer>"


def prompt(canvas: Canvas) -> str:
    """Returns a paragraph that explains the dialect to a model."""
    return (
        "Answer with the next action as a list of one dictionary in <answer> tags, such as "
        "<answer>[{'action': 'click', 'point': [x, y], 'input_text': 'no input text'}]</answer>. "
        f"In a point {canvas.range_in_words}; actions without one have [-100, -100]. The actions are click, "
        "doubleclick, rightclick, long_press and moveto (point), type, open_app and answer (input_text), scroll "
        "(input_text: up, down, left or right), hotkey (input_text: keys with spaces between), press_back, press_home, "
        "press_enter, wait and complete."
    )


DIALECT = Dialect(read, VOCABULARY, words, prompt)
