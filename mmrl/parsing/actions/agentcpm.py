"""AgentCPM-GUI's dialect: one JSON object, such as `{"POINT":[480,320]}`, and nothing beside it.

Zhang et al. 2025 (AgentCPM-GUI, arXiv 2506.01391). A click is a POINT, with a `duration` above 200 milliseconds a long
press; POINT with `to` is a swipe, whose direction is that of the finger; PRESS is a button, TYPE a text, `duration`
alone a wait, and a STATUS without an action the end of the task. `thought` may stand in every object.
"""

import json
from collections.abc import Mapping

from mmrl.parsing.actions.action import Action, Direction
from mmrl.parsing.actions.dialect import Dialect, plain_number
from mmrl.parsing.answers import ParseError, shown
from mmrl.parsing.coordinates import Canvas, Point, format_point

TAP = 200  # milliseconds: what the schema says where no duration is written; longer is a long press
# where the view goes when the finger goes up, down, left, right: the contents go with the finger
_VIEWS: Mapping[str, Direction] = {"up": "down", "down": "up", "left": "right", "right": "left"}
_BUTTONS = ("HOME", "BACK", "ENTER", "APPSELECT")
# how a task may end, and what mmrl's action says of it
_ENDS: Mapping[str, str | None] = {
    **{"finish": None, "satisfied": "success", "impossible": "failure"},
    **{"interrupt": "interrupt", "need_feedback": "need_feedback"},
}
_GOES_ON = ("continue", "start")
_PRIMITIVES = {"POINT", "PRESS", "TYPE"}
_KEYS = _PRIMITIVES | {"thought", "to", "duration", "STATUS"}
MAX_CHARACTERS = 20_000


def read(text: str, canvas: Canvas) -> Action:
    """Returns the action of the one object that is the whole text."""
    written = _object(text)
    names = _PRIMITIVES & set(written)
    if len(names) > 1 or ("to" in written and "POINT" not in written):
        raise ParseError(f"an object has one of POINT, PRESS and TYPE, and `to` with a POINT, got {shown(text)}")
    duration = _duration(written)
    status = written.get("STATUS", "continue")
    if status not in (*_ENDS, *_GOES_ON):
        raise ParseError(f"no STATUS {shown(str(status))}; known are {', '.join((*_GOES_ON, *_ENDS))}")
    if "PRESS" in names:
        if written["PRESS"] not in _BUTTONS:
            raise ParseError(f"no button {shown(str(written['PRESS']))}; known are {', '.join(_BUTTONS)}")
        return Action("hotkey", keys=(str(written["PRESS"]).lower(),))
    if "TYPE" in names:
        if not isinstance(written["TYPE"], str):
            raise ParseError(f"TYPE is a text, got {shown(str(written['TYPE']))}")
        return Action("type", text=written["TYPE"])
    if "POINT" in names:
        return _touch(canvas.point_to_original(_point(written["POINT"])), written, duration, canvas)
    if status in _ENDS:
        return Action("finish", text=_ENDS[str(status)])
    if duration is None:
        raise ParseError(f"an object needs an action, a duration or the STATUS of an end, got {shown(text)}")
    return Action("wait", amount=duration / 1000)


def _touch(point: Point, written: Mapping[str, object], duration: int | None, canvas: Canvas) -> Action:
    if "to" not in written:
        if duration is None or duration <= TAP:
            return Action("click", point=point)
        return Action("long_press", point=point, amount=duration / 1000)
    towards = written["to"]
    if isinstance(towards, str):
        if towards not in _VIEWS:
            raise ParseError(f"`to` is a point, or one of {', '.join(_VIEWS)}, got {shown(towards)}")
        return Action("scroll", point=point, direction=_VIEWS[towards])
    return Action("drag", point=point, end=canvas.point_to_original(_point(towards)))


def _object(text: str) -> dict[str, object]:
    """Returns the JSON object of a text. Raises ParseError for anything else, unknown keys and keys written twice."""
    if len(text) > MAX_CHARACTERS:
        raise ParseError(f"an action has at most {MAX_CHARACTERS} characters, got {len(text)}")
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"an action is one JSON object, got {shown(text)}") from error
    if not isinstance(value, dict) or not set(value) <= _KEYS:
        raise ParseError(f"an action is an object with keys of {', '.join(sorted(_KEYS))}, got {shown(text)}")
    if not isinstance(value.get("thought", ""), str):
        raise ParseError(f"a thought is a text, got {shown(str(value['thought']))}")
    return value


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _point(value: object) -> Point:
    if not isinstance(value, list) or len(value) != 2 or not all(type(x) in (int, float) for x in value):
        raise ParseError(f"a point is [x, y], got {shown(str(value))}")
    return float(value[0]), float(value[1])


def _duration(written: Mapping[str, object]) -> int | None:
    value = written.get("duration")
    if value is None and "duration" not in written:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 10**9:
        raise ParseError(f"a duration is a whole number of milliseconds, got {shown(str(value))}")
    return value


def words(action: Action, canvas: Canvas) -> str:
    """Returns an action as compact JSON."""
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in _fields(action, canvas).items()) + "}"


def _fields(action: Action, canvas: Canvas) -> dict[str, str]:
    """Returns the keys of an action, with their values as JSON."""
    if action.kind == "hotkey":
        button = action.keys[0].upper() if len(action.keys) == 1 else ""
        if button not in _BUTTONS:
            raise ValueError(f"this dialect has the buttons {', '.join(_BUTTONS)}, got {' '.join(action.keys)}")
        return {"PRESS": json.dumps(button)}
    if action.kind == "type":
        return {"TYPE": json.dumps(action.text, ensure_ascii=False)}
    if action.kind == "finish":
        status = next((status for status, text in _ENDS.items() if text == action.text), None)
        if status is None:
            known = ", ".join(text for text in _ENDS.values() if text)
            raise ValueError(f"this dialect ends a task without a text, or with one of {known}, got {action.text!r}")
        return {"STATUS": json.dumps(status)}
    if action.kind in ("wait", "long_press") and action.amount is None:
        raise ValueError(f"this dialect needs the amount of a {action.kind}")
    if action.kind == "wait":
        return {"duration": _milliseconds(action.amount)}
    if action.point is None:
        raise ValueError(f"this dialect needs the point where a {action.kind} begins")
    fields = {"POINT": _spelled(action.point, canvas)}
    if action.kind == "long_press":
        if (action.amount or 0) * 1000 <= TAP:
            raise ValueError(f"a long press takes more than {TAP} milliseconds in this dialect, got {action.amount} s")
        return fields | {"duration": _milliseconds(action.amount)}
    if action.kind == "scroll":
        return fields | {"to": json.dumps(next(to for to, view in _VIEWS.items() if view == action.direction))}
    if action.kind == "drag":
        assert action.end is not None, "a drag has an end"
        return fields | {"to": _spelled(action.end, canvas)}
    return fields


def _spelled(point: Point, canvas: Canvas) -> str:
    return f"[{format_point(point, canvas).replace(' ', '')}]"


def _milliseconds(seconds: float | None) -> str:
    assert seconds is not None, "its caller checks it"
    return plain_number(round(seconds * 1000))


def prompt(canvas: Canvas) -> str:
    """Returns a paragraph that explains the dialect to a model."""
    return (
        "Answer with the next action as one compact JSON object and nothing else: "
        '{"POINT":[x,y]} taps, with "duration":1000 it is held (milliseconds), with "to":"up", "down", "left" or '
        '"right" the finger swipes that way, with "to":[x,y] to another point; {"PRESS":"BACK"}, "HOME" or "ENTER" is '
        'a button; {"TYPE":"..."} types; {"duration":3000} waits; {"STATUS":"finish"} ends the task, '
        f'{{"STATUS":"impossible"}} gives it up. A "thought" may come first. In points {canvas.range_in_words}.'
    )


DIALECT = Dialect(
    read,
    {
        "click": "point",
        "long_press": "point amount",
        "scroll": "direction point",
        "drag": "end point",
        "type": "text",
        "hotkey": "keys",
        "wait": "amount",
        "finish": "text",
    },
    words,
    prompt,
)
