"""The names of data sets and models for the kinds of actions, and for keys."""

from collections.abc import Mapping
from typing import get_args

from mmrl.parsing.actions.action import Kind

_KINDS: Mapping[str, Kind] = {
    **{"left_click": "click", "tap": "click", "moveto": "move", "move_to": "move", "mouse_move": "move"},
    **{"doubleclick": "double_click", "left_double": "double_click"},
    **{"rightclick": "right_click", "right_single": "right_click"},
    **{"input": "type", "input_text": "type", "select": "type"},  # GUI-R1's select names the entry to take
    **{"swipe": "scroll", "open_app": "open"},
    **{"complete": "finish", "finished": "finish", "terminate": "finish"},
}
_KEYS: Mapping[str, str] = {
    **{"navigate_back": "back", "navigate_home": "home", "enter": "enter", "close/delete": "delete"},
}
PRESS = "press_"  # press_back, press_home, press_enter ...


def named(name: str) -> tuple[Kind, tuple[str, ...]] | None:
    """Returns the kind of action of a name, and the keys that the name implies; None for an unknown name."""
    name = name.strip().lower().replace(" ", "_")
    kind = next((kind for kind in get_args(Kind) if kind == name), _KINDS.get(name))
    if kind is not None:
        return kind, ()
    key = name.removeprefix(PRESS) if name.startswith(PRESS) else _KEYS.get(name)
    return ("hotkey", (key,)) if key else None


def keys_of(text: str) -> tuple[str, ...]:
    """Returns the keys of a text such as `ctrl+c` or `ctrl c`."""
    if any(map(str.isspace, text)):
        return tuple(text.split())
    return tuple(key for key in text.split("+") if key) or ((text,) if text else ())
