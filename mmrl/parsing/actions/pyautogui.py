"""The dialect of calls of pyautogui, and of OSWorld's WAIT, DONE and FAIL. The calls are parsed, never run.

Xie et al. 2024 (OSWorld, arXiv 2404.07972). The code is the whole text, or stands in one fence of three backticks. It
is one call, except that `moveTo` and then `dragTo` are one drag. A notch of the wheel is 100 pixels, as in browsers. A
finish without a text is written DONE, which is read as a success.
"""

from mmrl.parsing.actions.action import Action, Direction, Kind
from mmrl.parsing.actions.calls import Call, Value, quote, read_calls
from mmrl.parsing.actions.dialect import Dialect, plain_number
from mmrl.parsing.answers import ParseError, shown
from mmrl.parsing.coordinates import Canvas, Point, format_point

PIXELS_PER_NOTCH = 100
_CLICKS: dict[str, Kind] = {"doubleClick": "double_click", "tripleClick": "triple_click", "rightClick": "right_click"}
_CLICKS |= {"middleClick": "middle_click", "leftClick": "click", "moveTo": "move"}
_BUTTONS: dict[Value, Kind] = {"left": "click", "right": "right_click", "middle": "middle_click"}
_BUTTONS |= {"primary": "click", "secondary": "right_click"}
_NUMBERS_OF_CLICKS: dict[Value, Kind] = {1: "click", 2: "double_click", 3: "triple_click"}
_NAMES: dict[Kind, str] = {kind: "click" if kind == "click" else name for name, kind in _CLICKS.items()}
_STATES = {"WAIT": Action("wait"), "DONE": Action("finish", text="success"), "FAIL": Action("finish", text="failure")}
_VOCABULARY: dict[Kind, str] = {
    **{kind: "point" for kind in _NAMES},
    **{"drag": "end point", "scroll": "direction point amount", "type": "text", "hotkey": "keys", "wait": "amount"},
    "finish": "text",
}


def read(text: str, canvas: Canvas) -> Action:
    """Returns the one action of the code in the text."""
    calls = read_calls(_code(text))
    if len(calls) == 2 and [call.name for call in calls] == ["pyautogui.moveTo", "pyautogui.dragTo"]:
        start, drag = (_action(call, canvas) for call in calls)
        return Action("drag", point=start.point, end=drag.end)
    if len(calls) != 1:
        raise ParseError(f"needs one call, or moveTo and dragTo, got {len(calls)}")
    return _action(calls[0], canvas)


def _code(text: str) -> str:
    """Returns the code in the one fence, without the name of its language; the whole text without a fence."""
    parts = text.split("```")
    if len(parts) == 1:
        return text.strip()
    if len(parts) != 3:
        raise ParseError(f"needs one fence of three backticks, got {len(parts) - 1} of its ends")
    language, line_end, code = parts[1].partition("\n")
    return code if line_end and language.strip().lower() in ("python", "py", "") else parts[1]


def _action(call: Call, canvas: Canvas) -> Action:
    if call.is_bare:
        if call.name not in _STATES:
            raise ParseError(f"no action {shown(call.name)}; known are {', '.join(_STATES)} and calls of pyautogui")
        return _STATES[call.name]
    module, _, name = call.name.rpartition(".")
    if call.name in ("time.sleep", "pyautogui.sleep"):
        return Action("wait", amount=_number(call.bind("seconds"), "seconds"))
    if module != "pyautogui":
        raise ParseError(f"no call {shown(call.name)}; allowed are pyautogui's and time.sleep")
    if name == "click":
        return _click(call, canvas)
    if name in _CLICKS:
        given = call.bind("x", "y", *(("duration",) if name == "moveTo" else ("interval", "button", "duration")))
        if given.get("button", "left") != "left":
            raise ParseError(f"{name} takes no other button than the left one")
        return Action(_CLICKS[name], point=_point(given, canvas))
    if name == "dragTo":
        given = call.bind("x", "y", "duration", "tween", "button")
        if given.get("button", "left") != "left":
            raise ParseError("a drag holds the left button")
        return Action("drag", end=_point(given, canvas))
    if name in ("scroll", "vscroll", "hscroll"):
        return _scroll(call, name, canvas)
    if name in ("write", "typewrite"):
        given = call.bind("message", "interval")
        message = given.get("message")
        if not isinstance(message, str):
            raise ParseError(f"{name} takes a text, got {shown(str(message))}")
        return Action("type", text=message)
    if name in ("press", "hotkey"):
        return Action("hotkey", keys=_keys(call, name))
    raise ParseError(f"no call {shown(call.name)} that is an action")


def _click(call: Call, canvas: Canvas) -> Action:
    given = call.bind("x", "y", "clicks", "interval", "button", "duration")
    button, clicks = given.get("button", "left"), given.get("clicks", 1)
    kind = _BUTTONS.get(button)
    if kind is None or clicks not in _NUMBERS_OF_CLICKS or (clicks != 1 and kind != "click"):
        raise ParseError(f"no action is {shown(str(clicks))} clicks of the button {shown(str(button))}")
    return Action(kind if kind != "click" else _NUMBERS_OF_CLICKS[clicks], point=_point(given, canvas))


def _scroll(call: Call, name: str, canvas: Canvas) -> Action:
    given = call.bind("clicks", "x", "y")
    notches = _number(given, "clicks")
    if not notches:
        raise ParseError("a scroll by 0 has no direction")
    ways: tuple[Direction, Direction] = ("right", "left") if name == "hscroll" else ("up", "down")
    point = _point(given, canvas) if "x" in given or "y" in given else None
    amount = abs(notches) * PIXELS_PER_NOTCH
    return Action("scroll", point=point, direction=ways[0 if notches > 0 else 1], amount=amount)


def _keys(call: Call, name: str) -> tuple[str, ...]:
    """Returns the keys of a hotkey, or the one key of a press."""
    keys: tuple[Value, ...] = call.positional
    if name == "press":
        key = call.bind("keys").get("keys")
        keys = key if isinstance(key, tuple) and len(key) == 1 else (key,)
    elif call.keywords:
        raise ParseError("hotkey takes names of keys only")
    if not all(isinstance(key, str) for key in keys):
        raise ParseError(f"keys are texts, got {shown(str(keys))}")
    return tuple("space" if key == " " else str(key) for key in keys)


def _number(given: dict[str, Value], name: str) -> float:
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParseError(f"{name} must be a number, got {shown(str(value))}")
    return value


def _point(given: dict[str, Value], canvas: Canvas) -> Point:
    return canvas.point_to_original((_number(given, "x"), _number(given, "y")))


def words(action: Action, canvas: Canvas) -> str:
    """Returns an action as code."""
    point = "" if action.point is None else _named(action.point, canvas)
    if action.kind == "drag":
        assert action.end is not None, "a drag has an end"
        start = f"pyautogui.moveTo({point})\n" if point else ""
        return f"{start}pyautogui.dragTo({_named(action.end, canvas)})"
    if action.kind == "scroll":
        return _scroll_text(action, point)
    if action.kind == "type":
        literal = quote(action.text or "")
        if "```" in literal:  # would look like the end of a fence
            literal = literal.replace("`", "\\x60")
        return f"pyautogui.write({literal})"
    if action.kind == "hotkey":
        name = "press" if len(action.keys) == 1 else "hotkey"
        return f"pyautogui.{name}({', '.join(map(quote, action.keys))})"
    if action.kind == "wait":
        return "WAIT" if action.amount is None else f"time.sleep({plain_number(action.amount)})"
    if action.kind == "finish":
        state = {None: "DONE", "success": "DONE", "failure": "FAIL"}.get(action.text)
        if state is None:
            raise ValueError(f"this dialect finishes with success or failure, not with {shown(action.text or '')}")
        return state
    return f"pyautogui.{_NAMES[action.kind]}({point})"


def _scroll_text(action: Action, point: str) -> str:
    if action.amount is None:
        raise ValueError("this dialect needs the amount of a scroll")
    notches = max(1, round(action.amount / PIXELS_PER_NOTCH)) * (1 if action.direction in ("up", "right") else -1)
    name = "hscroll" if action.direction in ("left", "right") else "scroll"
    return f"pyautogui.{name}({notches}{', ' if point else ''}{point})"


def _named(point: Point, canvas: Canvas) -> str:
    x, y = format_point(point, canvas).split(", ")
    return f"x={x}, y={y}"


def prompt(canvas: Canvas) -> str:
    """Returns a paragraph that explains the dialect to a model."""
    return (
        "You control a computer with pyautogui: answer with one call, in a block of three backticks if you write "
        "anything else. Use pyautogui.click(x=..., y=...), doubleClick, tripleClick, rightClick, middleClick and "
        "moveTo in the same way, moveTo and then dragTo for a drag, scroll(n) (positive: up) and hscroll(n), "
        "write('text'), press('enter'), hotkey('ctrl', 'c'), time.sleep(seconds), or the word WAIT, DONE or FAIL. "
        f"In the coordinates {canvas.range_in_words}, counted from the top left corner."
    )


DIALECT = Dialect(read, _VOCABULARY, words, prompt)
