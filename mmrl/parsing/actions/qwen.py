"""The dialect of Qwen's models: calls of the tools computer_use and mobile_use, as JSON in `<tool_call>` tags.

github.com/QwenLM/Qwen3-VL (cookbooks). A scroll is in pixels of the display whose size the prompt names, positive
upwards or, for hscroll, to the right. A drag with a start is mobile_use's swipe.
"""

import json
import math

from mmrl.parsing.actions.action import CLICKS, Action, Kind
from mmrl.parsing.actions.dialect import Dialect, plain_number
from mmrl.parsing.answers import ParseError, extract, read_json, shown
from mmrl.parsing.coordinates import Canvas, Point, format_point

_TOOLS = ("computer_use", "mobile_use")
_KINDS: dict[str, Kind] = {
    **{"left_click": "click", "click": "click", "double_click": "double_click", "triple_click": "triple_click"},
    **{"right_click": "right_click", "middle_click": "middle_click", "long_press": "long_press", "mouse_move": "move"},
    **{"left_click_drag": "drag", "swipe": "drag", "scroll": "scroll", "hscroll": "scroll", "type": "type"},
    **{"key": "hotkey", "system_button": "hotkey", "wait": "wait", "open": "open", "answer": "answer"},
    "terminate": "finish",
}
_NAMES: dict[Kind, str] = {"click": "left_click", "move": "mouse_move", "hotkey": "key", "finish": "terminate"}
_VOCABULARY: dict[Kind, str] = {
    **{kind: "point" for kind in CLICKS},
    **{"long_press": "point amount", "move": "point", "drag": "end point", "scroll": "direction point amount"},
    **{"type": "text", "hotkey": "keys", "wait": "amount", "open": "text", "answer": "text", "finish": "text"},
}
Arguments = dict[str, object]


def read(text: str, canvas: Canvas) -> Action:
    """Returns the action of the one tool call in the text."""
    call = read_json(extract(text, "tool_call"))
    if not isinstance(call, dict) or call.get("name") not in _TOOLS or not isinstance(call.get("arguments"), dict):
        raise ParseError(f"a tool call has a name, {' or '.join(_TOOLS)}, and arguments: {shown(str(call))}")
    arguments: Arguments = call["arguments"]
    name = _text(arguments, "action")
    kind = _KINDS.get(name)
    if kind in CLICKS or kind == "move":
        amount = _number(arguments, "time") if kind == "long_press" and "time" in arguments else None
        return Action(kind, point=_point(arguments, "coordinate", canvas), amount=amount)
    if kind == "drag":
        return _drag(arguments, canvas)
    if kind == "scroll":
        return _scroll(name, arguments, canvas)
    if kind == "hotkey":
        return Action(kind, keys=_keys(name, arguments))
    if kind == "wait":
        return Action(kind, amount=_number(arguments, "time") if "time" in arguments else None)
    if kind == "finish":
        return Action(kind, text=_text(arguments, "status") if "status" in arguments else None)
    if kind is None:
        raise ParseError(f"no action {shown(name)}; known are {', '.join(_KINDS)}")
    return Action(kind, text=_text(arguments, "text"))


def _drag(arguments: Arguments, canvas: Canvas) -> Action:
    """Returns a drag from the first coordinate to the second; with one coordinate, from the pointer to it."""
    first = _point(arguments, "coordinate", canvas)
    if "coordinate2" not in arguments:
        return Action("drag", end=first)
    return Action("drag", point=first, end=_point(arguments, "coordinate2", canvas))


def _scroll(name: str, arguments: Arguments, canvas: Canvas) -> Action:
    pixels = _number(arguments, "pixels")
    if not pixels:
        raise ParseError("a scroll by 0 pixels has no direction")
    point = _point(arguments, "coordinate", canvas) if "coordinate" in arguments else None
    x, y = canvas.point_to_original((abs(pixels), abs(pixels)))
    if name == "hscroll":
        return Action("scroll", point=point, direction="right" if pixels > 0 else "left", amount=x)
    return Action("scroll", point=point, direction="up" if pixels > 0 else "down", amount=y)


def _keys(name: str, arguments: Arguments) -> tuple[str, ...]:
    if name == "system_button":
        return (_text(arguments, "button").lower(),)
    keys = arguments.get("keys", arguments.get("text"))  # mobile_use's key has a text
    keys = [keys] if isinstance(keys, str) else keys
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ParseError(f"keys must be a list of names, got {shown(str(keys))}")
    return tuple(keys)


def _text(arguments: Arguments, name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ParseError(f"{name} must be a text, got {shown(str(value))}")
    return value


def _number(arguments: Arguments, name: str) -> float:
    value = arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParseError(f"{name} must be a number, got {shown(str(value))}")
    return value


def _point(arguments: Arguments, name: str, canvas: Canvas) -> Point:
    value = arguments.get(name)
    if not isinstance(value, list) or len(value) != 2:
        raise ParseError(f"{name} must be [x, y], got {shown(str(value))}")
    x, y = (_number({name: number}, name) for number in value)
    return canvas.point_to_original((x, y))


def words(action: Action, canvas: Canvas) -> str:
    """Returns an action as a tool call."""
    name, arguments = _arguments(action, canvas)
    tool = "mobile_use" if name in ("swipe", "long_press", "open") else "computer_use"
    body = json.dumps({"name": tool, "arguments": {"action": name, **arguments}}, ensure_ascii=False)
    for tag in ("<tool_call>", "</tool_call>"):  # in typed text they would look like the tags around the call
        body = body.replace(tag, "\\u003c" + tag[1:])
    return f"<tool_call>\n{body}\n</tool_call>"


def _arguments(action: Action, canvas: Canvas) -> tuple[str, Arguments]:
    """Returns the tool's name for an action, and the arguments of the call."""
    name = _NAMES.get(action.kind, action.kind)
    point: Arguments = {} if action.point is None else {"coordinate": _coordinate(action.point, canvas)}
    if action.kind == "drag":
        assert action.end is not None, "a drag has an end"
        end = _coordinate(action.end, canvas)
        return ("swipe", {**point, "coordinate2": end}) if point else ("left_click_drag", {"coordinate": end})
    if action.kind == "scroll":
        name, pixels = _pixels(action, canvas)
        return name, {**point, "pixels": pixels}
    if action.kind == "hotkey":
        return name, {"keys": list(action.keys)}
    if action.kind == "finish":
        return name, {} if action.text is None else {"status": action.text}
    amount: Arguments = {} if action.amount is None else {"time": json.loads(plain_number(action.amount))}
    text: Arguments = {} if action.text is None else {"text": action.text}
    return name, {**point, **amount, **text}


def _pixels(action: Action, canvas: Canvas) -> tuple[str, float]:
    """Returns "scroll" or "hscroll", and the signed pixels on the display, at least one unit of its grid."""
    if action.amount is None:
        raise ValueError("this dialect needs the amount of a scroll")
    is_sideways = action.direction in ("left", "right")
    span = canvas.point_to_model((action.amount, action.amount))[0 if is_sideways else 1]
    smallest = 10**-canvas.decimals
    pixels = math.copysign(
        max(round(span, canvas.decimals), smallest), 1 if action.direction in ("up", "right") else -1
    )
    return "hscroll" if is_sideways else "scroll", json.loads(f"{pixels:.{canvas.decimals}f}")


def _coordinate(point: Point, canvas: Canvas) -> object:
    return json.loads(f"[{format_point(point, canvas)}]")


def prompt(canvas: Canvas) -> str:
    """Returns a paragraph that explains the dialect to a model."""
    width, height = canvas.span
    return (
        "You use a computer with the tool computer_use: answer with one call such as <tool_call>"
        '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [x, y]}}</tool_call>. '
        f"The display is {width:.0f}x{height:.0f}: {canvas.range_in_words}. The actions are left_click, double_click, "
        "triple_click, right_click, middle_click and mouse_move (coordinate), left_click_drag (coordinate: where to "
        "drop), scroll and hscroll (pixels, positive: up or right; coordinate if you want), type (text), key (keys: a "
        "list, pressed together), wait (time in seconds), answer (text) and terminate (status: success or failure). "
        "On a phone, open (text: the application) and system_button (button: Back, Home, Menu or Enter) are there too."
    )


DIALECT = Dialect(read, _VOCABULARY, words, prompt)
