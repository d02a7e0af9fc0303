"""The dialect of UI-TARS: `Thought: ...`, then `Action: click(start_box='(x,y)')`.

Qin et al. 2025 (arXiv 2501.12326; github.com/bytedance/UI-TARS). Coordinates stand in start_box, start_point or point,
in any form that `mmrl.parsing.answers` reads. Typed text has Python's escapes. A scroll has no amount, a wait no time.
"""

from mmrl.parsing.actions.action import Action, Kind
from mmrl.parsing.actions.calls import Call, Value, quote, read_calls, unescape
from mmrl.parsing.actions.dialect import Dialect, place_to_original
from mmrl.parsing.answers import ParseError, read_place, shown
from mmrl.parsing.coordinates import Box, Canvas, Point, format_box, format_point

_CLICKS: dict[str, Kind] = {"click": "click", "left_double": "double_click", "right_single": "right_click"}
_CLICKS |= {"left_single": "click", "long_press": "long_press"}
_NAMES: dict[Kind, str] = {kind: name for name, kind in _CLICKS.items() if name != "left_single"}
_STARTS, _ENDS = ("start_box", "start_point", "point"), ("end_box", "end_point")
_VOCABULARY: dict[Kind, str] = {
    **{kind: "point box" for kind in _NAMES},
    **{"drag": "end point", "scroll": "direction point", "hotkey": "keys", "type": "text", "open": "text"},
    **{"wait": "", "finish": "text"},
}


def read(text: str, canvas: Canvas) -> Action:
    """Returns the action of the one line that begins with `Action:`, and of all lines behind it."""
    parts = f"\n{text}".split("\nAction:")
    if len(parts) != 2:
        raise ParseError(f"needs one line that begins with 'Action:', got {len(parts) - 1}")
    return _action(_call(parts[1].strip()), canvas)


def _call(text: str) -> Call:
    """Returns the one call in the text.

    Models forget to escape quotes in text that they type: such a text ends at the last quote.
    """
    try:
        calls = read_calls(text)
    except ParseError:
        for name in ("type", "finished"):
            start = f"{name}(content="
            is_quoted = text[len(start) : len(start) + 1] in ("'", '"') and text[-2:-1] == text[len(start)]
            if text.startswith(start) and text.endswith(")") and is_quoted and len(text) > len(start) + 2:
                return Call(name, keywords={"content": unescape(text[len(start) + 1 : -2])})
        raise
    if len(calls) != 1:
        raise ParseError(f"needs one action, got {len(calls)}: {shown(text)}")
    return calls[0]


def _action(call: Call, canvas: Canvas) -> Action:
    name = call.name
    if name in _CLICKS:
        more = ("time",) if name == "long_press" else ()  # models for phones write an empty time
        point, box = _place(call.bind(*_STARTS, *more), _STARTS, canvas)
        return Action(_CLICKS[name], point=point, box=box)
    if name == "drag":
        given = call.bind(*_STARTS, *_ENDS)
        return Action("drag", point=_point(given, _STARTS, canvas), end=_point(given, _ENDS, canvas))
    if name == "scroll":
        given = call.bind(*_STARTS, "direction")
        point = _point(given, _STARTS, canvas) if set(given) & set(_STARTS) else None
        return Action("scroll", point=point, direction=_text(given, "direction"))  # type: ignore[arg-type]  # it checks
    if name == "hotkey":
        return Action("hotkey", keys=tuple(_text(call.bind("key"), "key").split()))
    if name in ("press_home", "press_back"):
        call.bind()
        return Action("hotkey", keys=(name.removeprefix("press_"),))
    if name == "type":
        return Action("type", text=_text(call.bind("content"), "content"))
    if name == "open_app":
        return Action("open", text=_text(call.bind("app_name"), "app_name"))
    if name == "wait":
        call.bind()
        return Action("wait")
    if name == "finished":
        given = call.bind("content")
        return Action("finish", text=_text(given, "content") if given else None)
    if name == "call_user":
        call.bind()
        return Action("finish", text="call_user")
    raise ParseError(f"no action {shown(name)}")


def _place(
    given: dict[str, Value], names: tuple[str, ...], canvas: Canvas
) -> tuple[Point | None, Box | None]:  # fmt: skip
    """Returns the point or the box of the argument that has one of the names; the other is None."""
    present = [name for name in names if name in given]
    if len(present) != 1:
        raise ParseError(f"needs one of {', '.join(names)}, got {len(present)}")
    return place_to_original(read_place(_text(given, present[0])), canvas)


def _point(given: dict[str, Value], names: tuple[str, ...], canvas: Canvas) -> Point:
    """Returns the point, or the centre of the box, of the argument that has one of the names."""
    point, box = _place(given, names, canvas)
    if point is None:
        assert box is not None, "a place is one of the two"
        return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return point


def _text(given: dict[str, Value], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise ParseError(f"{name} must be a text, got {shown(str(value))}")
    return value


def words(action: Action, canvas: Canvas) -> str:
    """Returns an action as a call."""
    return f"Action: {_call_text(action, canvas)}"


def _call_text(action: Action, canvas: Canvas) -> str:
    start = "" if action.point is None else f"start_box='({_tight(format_point(action.point, canvas))})'"
    if action.box is not None:
        start = f"start_box='({_tight(format_box(action.box, canvas))})'"
    if action.kind == "drag":
        if action.point is None or action.end is None:
            raise ValueError("this dialect needs the point where a drag begins")
        return f"drag({start}, end_box='({_tight(format_point(action.end, canvas))})')"
    if action.kind == "scroll":
        return f"scroll({start}{', ' if start else ''}direction='{action.direction}')"
    if action.kind == "hotkey":
        return f"hotkey(key={quote(' '.join(action.keys))})"
    if action.kind == "open":
        return f"open_app(app_name={quote(action.text or '')})"
    if action.kind == "wait":
        return "wait()"
    if action.kind == "type":
        return f"type(content={quote(action.text or '')})"
    if action.kind == "finish":
        return "finished()" if action.text is None else f"finished(content={quote(action.text)})"
    return f"{_NAMES[action.kind]}({start})"


def _tight(numbers: str) -> str:
    return numbers.replace(" ", "")


def prompt(canvas: Canvas) -> str:
    """Returns a paragraph that explains the dialect to a model."""
    return (
        "You are a GUI agent. Answer with 'Thought: ...' and, on a new line, 'Action: ' with one of click("
        "start_box='(x,y)'), left_double(start_box='(x,y)'), right_single(start_box='(x,y)'), long_press(start_box="
        "'(x,y)'), drag(start_box='(x1,y1)', end_box='(x2,y2)'), scroll(start_box='(x,y)', direction='down') (or up, "
        "left, right), hotkey(key='ctrl c'), type(content='...') (write \\' for a quote and \\n for enter), "
        "open_app(app_name='...'), press_home(), press_back(), wait(), finished(content='...') and call_user(). "
        f"In the coordinates {canvas.range_in_words}, counted from the top left corner."
    )


DIALECT = Dialect(read, _VOCABULARY, words, prompt)
