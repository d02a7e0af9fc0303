"""Agents' names of the keys of a keyboard, translated into Playwright's names."""

from collections.abc import Sequence

_NAMES = {
    **{"ctrl": "Control", "control": "Control", "alt": "Alt", "option": "Alt", "shift": "Shift"},
    **{name: "Meta" for name in ("cmd", "command", "meta", "super", "win", "windows")},
    **{"enter": "Enter", "return": "Enter", "esc": "Escape", "escape": "Escape", "tab": "Tab", "space": " "},
    **{"backspace": "Backspace", "delete": "Delete", "del": "Delete", "insert": "Insert", "ins": "Insert"},
    **{"up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft", "right": "ArrowRight"},
    **{f"arrow{name}": f"Arrow{name.capitalize()}" for name in ("up", "down", "left", "right")},
    **{"home": "Home", "end": "End", "pageup": "PageUp", "pgup": "PageUp", "pagedown": "PageDown", "pgdn": "PageDown"},
    **{"page_up": "PageUp", "page_down": "PageDown", "pgdown": "PageDown", "plus": "+", "minus": "-"},
    **{f"f{number}": f"F{number}" for number in range(1, 13)},
}
BACK = "back"  # the button of a phone or a browser


def pressed(keys: Sequence[str]) -> list[str]:
    """Returns the keys in Playwright's names, in the order in which they are pressed.

    Raises:
        ValueError: for an unknown name of a key, with the known names.
    """
    return [_name(key) for key in keys]


def _name(key: str) -> str:
    name = _NAMES.get(key.lower())
    if name is None and len(key) == 1 and "!" <= key <= "~":
        return key
    if name is None:
        raise ValueError(f"there is no key {key!r}; keys are single characters and {', '.join([*_NAMES, BACK])}")
    return name
