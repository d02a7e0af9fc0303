"""Translations between BrowserGym's action strings and observation dicts, and those of mmrl.

Chezelles et al. 2024 (BrowserGym, arXiv 2412.05467; browsergym-core 0.14). An action is a text of Python calls, which
is parsed here and never run; coordinates are pixels of the screenshot. An element is named by its `bid`, whose box is
in the observation's `extra_element_properties`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from mmrl.core.data import Observation
from mmrl.parsing.actions.action import Action, Kind
from mmrl.parsing.actions.calls import Call, Value, quote, read_calls
from mmrl.parsing.actions.dialect import plain_number
from mmrl.parsing.answers import ParseError, shown
from mmrl.parsing.coordinates import Box, Point

from .key_names import BACK, pressed
from .pixels import as_picture, as_pixels

DEFAULT_WAIT = 1.0  # seconds of a noop
FAILURE = "failure"
_BUTTONS: dict[Value, Kind] = {"left": "click", "right": "right_click", "middle": "middle_click"}
_BUTTON_OF = {kind: button for button, kind in _BUTTONS.items()}
_TURNS: dict[str, tuple[int, int]] = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_ALL, _DELETE = Action("hotkey", keys=("ctrl", "a")), Action("hotkey", keys=("delete",))


def read(text: str, observation: Mapping[str, Any] | None = None) -> tuple[Action, ...]:
    """Returns the actions of a text, in order; `fill` and `clear` become several actions.

    Args:
        observation: BrowserGym's, needed for calls that name an element.

    Raises:
        ParseError: if the text is no sequence of calls, or has a call without an action of mmrl.
    """
    boxes = (observation or {}).get("extra_element_properties") or {}
    try:
        actions = [action for call in read_calls(text) for action in _actions(call, boxes)]
    except ParseError:
        raise
    except ValueError as error:  # the rules of Action
        raise ParseError(str(error)) from error
    if not actions:
        raise ParseError("needs at least one call")
    return tuple(actions)


def _actions(call: Call, boxes: Mapping[str, Any]) -> list[Action]:
    name = call.name
    if name == "mouse_click":
        arguments = call.bind("x", "y", "button")
        return [Action(_button(arguments), point=_point(arguments))]
    if name == "mouse_dblclick":
        arguments = call.bind("x", "y", "button")
        if _button(arguments) != "click":
            raise ParseError("a double click must be one of the left button")
        return [Action("double_click", point=_point(arguments))]
    if name == "mouse_move":
        return [Action("move", point=_point(call.bind("x", "y")))]
    if name == "mouse_drag_and_drop":
        arguments = call.bind("from_x", "from_y", "to_x", "to_y")
        return [Action("drag", point=_point(arguments, "from_x", "from_y"), end=_point(arguments, "to_x", "to_y"))]
    if name == "scroll":
        return _scrolls(call.bind("delta_x", "delta_y"), "delta_x", "delta_y", None)
    if name == "scroll_at":
        arguments = call.bind("x", "y", "dx", "dy")
        return _scrolls(arguments, "dx", "dy", _point(arguments))
    if name in ("keyboard_type", "keyboard_insert_text"):
        return [Action("type", text=_text(call.bind("text"), "text"))]
    if name == "keyboard_press":
        return [Action("hotkey", keys=_keys(_text(call.bind("key"), "key")))]
    if name == "noop":
        arguments = call.bind("wait_ms")
        return [Action("wait", amount=_number(arguments, "wait_ms") / 1000 if arguments else DEFAULT_WAIT)]
    if name == "send_msg_to_user":
        return [Action("answer", text=_text(call.bind("text"), "text"))]
    if name == "report_infeasible":
        _text(call.bind("reason"), "reason")
        return [Action("finish", text=FAILURE)]
    if name == "go_back":
        call.bind()
        return [Action("hotkey", keys=(BACK,))]
    return _on_element(call, boxes)


def _on_element(call: Call, boxes: Mapping[str, Any]) -> list[Action]:
    """Returns the actions of a call that names elements."""
    name = call.name
    if name in ("click", "dblclick"):
        arguments = call.bind("bid", "button", "modifiers")
        kind = _button(arguments)
        if arguments.get("modifiers") or (name == "dblclick" and kind != "click"):
            raise ParseError(f"no action is a {name} with these buttons: {shown(str(arguments))}")
        return [Action("double_click" if name == "dblclick" else kind, box=_box(arguments, "bid", boxes))]
    if name == "hover":
        return [Action("move", point=_middle(_box(call.bind("bid"), "bid", boxes)))]
    if name == "drag_and_drop":
        arguments = call.bind("from_bid", "to_bid")
        start, end = (_middle(_box(arguments, side, boxes)) for side in ("from_bid", "to_bid"))
        return [Action("drag", point=start, end=end)]
    if name in ("fill", "clear"):
        arguments = call.bind("bid", "value", "enable_autocomplete_menu") if name == "fill" else call.bind("bid")
        text = _text(arguments, "value") if name == "fill" else ""
        last = Action("type", text=text) if text else _DELETE
        return [Action("click", box=_box(arguments, "bid", boxes)), _ALL, last]
    raise ParseError(f"no action of ours stands for {shown(name)}")


def words(action: Action, *, scroll_step: float = 200.0) -> str:
    """Returns the action as BrowserGym's text, one call a line.

    Args:
        scroll_step: pixels of a scroll without an amount.

    Raises:
        ValueError: for an action without a call: `open`, a triple click, a drag without its start, an unknown key.
    """
    kind = action.kind
    if kind == "type":
        return f"keyboard_type({quote(action.text or '')})"
    if kind == "hotkey":
        return _pressing(action.keys)
    if kind == "wait":
        return _noop(action)
    if kind == "answer":
        return f"send_msg_to_user({quote(action.text or '')})"
    if kind == "finish":
        return f"report_infeasible({quote(FAILURE)})" if action.text == FAILURE else _goodbye(action)
    if kind == "scroll":
        return _scrolling(action, scroll_step)
    return _mouse(action)


def _mouse(action: Action) -> str:
    kind, point = action.kind, "" if action.point is None else _pair(action.point)
    if kind in _BUTTON_OF:
        button = "" if kind == "click" else f", {quote(str(_BUTTON_OF[kind]))}"
        return f"mouse_click({point}{button})"
    if kind == "double_click":
        return f"mouse_dblclick({point})"
    if kind == "move":
        return f"mouse_move({point})"
    if kind == "long_press":
        return f"mouse_down({point})\n{_noop(action)}\nmouse_up({point})"
    if kind == "drag" and point and action.end is not None:
        return f"mouse_drag_and_drop({point}, {_pair(action.end)})"
    raise ValueError(f"BrowserGym has no call for a {kind} with {' and '.join(action.parts)}")


def _scrolling(action: Action, scroll_step: float) -> str:
    amount = scroll_step if action.amount is None else action.amount
    x, y = _TURNS[str(action.direction)]
    if action.point is None:
        return f"scroll({_pair((x * amount, y * amount))})"
    # scroll_at takes whole numbers
    return f"scroll_at({', '.join(str(round(value)) for value in (*action.point, x * amount, y * amount))})"


def _pressing(keys: tuple[str, ...]) -> str:
    if keys == (BACK,):
        return "go_back()"
    return f"keyboard_press({quote('+'.join('Space' if key == ' ' else key for key in pressed(keys)))})"


def observation_of(
    raw: Mapping[str, Any], *, reward: float = 0.0, is_done: bool = False, is_first: bool = False
) -> Observation:
    """Returns an observation of BrowserGym's dict: the screenshot, the last action's error, and at first the goal."""
    text = str(raw.get("last_action_error") or "")
    goal = _goal(raw) if is_first else None
    return Observation(as_picture(raw["screenshot"], "BrowserGym's screenshot"), text, is_done, float(reward), goal)


def observation_dict(
    observation: Observation,
    *,
    goal: str,
    last_action: str = "",
    messages: Sequence[Mapping[str, Any]] = (),
    seconds: float = 0,
) -> dict[str, Any]:
    """Returns an observation under BrowserGym's keys.

    The trees of the page, its addresses and the focused element are empty, since an environment of pixels has none.
    """
    return {
        "chat_messages": tuple(dict(message) for message in messages),
        "goal": goal,
        "goal_object": ({"type": "text", "text": goal},),
        "open_pages_urls": ("",),
        "open_pages_titles": ("",),
        "active_page_index": numpy.array([0]),
        "url": "",
        "screenshot": as_pixels(observation.screenshot),
        "dom_object": {},
        "axtree_object": {},
        "extra_element_properties": {},
        "focused_element_bid": "",
        "last_action": last_action,
        "last_action_error": observation.text,
        "elapsed_time": numpy.array([seconds], dtype=numpy.float64),
    }


def _goal(raw: Mapping[str, Any]) -> str:
    """Returns the texts of the goal; images of a goal are left out."""
    parts = [part["text"] for part in raw.get("goal_object", ()) if part.get("type") == "text"]
    return "\n".join(parts) or str(raw.get("goal", ""))


def _noop(action: Action) -> str:
    return f"noop({plain_number(1000 * (DEFAULT_WAIT if action.amount is None else action.amount))})"


def _goodbye(action: Action) -> str:
    return f"send_msg_to_user({quote(action.text or 'success')})"


def _pair(point: Point) -> str:
    return f"{plain_number(point[0])}, {plain_number(point[1])}"


def _button(arguments: Mapping[str, Value]) -> Kind:
    button = arguments.get("button", "left")
    if not isinstance(button, str) or button not in _BUTTONS:
        raise ParseError(f"a button must be left, middle or right, got {shown(str(button))}")
    return _BUTTONS[button]


def _scrolls(arguments: Mapping[str, Value], x_name: str, y_name: str, point: Point | None) -> list[Action]:
    """Returns one scroll for each axis that moves."""
    x, y = _number(arguments, x_name), _number(arguments, y_name)
    scrolls = []
    if x:
        scrolls.append(Action("scroll", point=point, direction="right" if x > 0 else "left", amount=abs(x)))
    if y:
        scrolls.append(Action("scroll", point=point, direction="down" if y > 0 else "up", amount=abs(y)))
    if not scrolls:
        raise ParseError("a scroll by 0 has no direction")
    return scrolls


def _keys(text: str) -> tuple[str, ...]:
    names = {"Control": "ctrl", "ControlOrMeta": "ctrl"}
    parts = [*text[:-1].split("+"), "+"] if text.endswith("+") else text.split("+")
    keys = [part for part in parts if part]
    return tuple(names.get(key, key if len(key) == 1 else key.lower()) for key in keys)


def _text(arguments: Mapping[str, Value], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ParseError(f"{name} must be a text, got {shown(str(value))}")
    return value


def _number(arguments: Mapping[str, Value], name: str) -> float:
    value = arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParseError(f"{name} must be a number, got {shown(str(value))}")
    return value


def _point(arguments: Mapping[str, Value], x: str = "x", y: str = "y") -> Point:
    return _number(arguments, x), _number(arguments, y)


def _box(arguments: Mapping[str, Value], name: str, boxes: Mapping[str, Any]) -> Box:
    bid = _text(arguments, name)
    if bid not in boxes:
        raise ParseError(f"there is no element {shown(bid)} in the observation")
    place = boxes[bid].get("bbox")
    if place is None or place[2] <= 0 or place[3] <= 0:
        raise ParseError(f"the element {shown(bid)} is not visible")
    x, y, width, height = map(float, place)
    return x, y, x + width, y + height


def _middle(box: Box) -> Point:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
