"""GUI-R1's list of one dictionary where a kind may be enough: `[{'action': 'scroll', 'coordinate': [x, y]}]`.

Lu et al. 2025 (UI-R1, arXiv 2503.21620) show a model the name and the coordinate of an action, no text, and judge what
is no click by its name. Such an action has its kind only; a click needs its coordinate.
"""

from mmrl.parsing.actions.action import CLICKS, Action
from mmrl.parsing.actions.dialect import Dialect
from mmrl.parsing.actions.gui_r1 import NO_TEXT, VOCABULARY, Fields, action_of, dictionary, fields_of, kind_of, spelled
from mmrl.parsing.coordinates import Canvas

_ALONE = ("wait", "finish")  # their kind is all that they need


def read(text: str, canvas: Canvas) -> Action:
    """The action of the one dictionary in the answer; without its text it is its kind only."""
    found = dictionary(text)
    kind, keys = kind_of(found)
    is_bare = str(found.get("input_text", NO_TEXT)).strip().lower() == NO_TEXT
    needs_no_text = kind in CLICKS or kind in _ALONE or kind == "move" or keys
    return Action(kind, is_kind_only=True) if is_bare and not needs_no_text else action_of(found, canvas)


def words(action: Action, canvas: Canvas) -> str:
    found = fields_of(action, canvas)
    said: Fields = {"action": found["action"], "coordinate": found["point"]}
    return spelled(said if found["input_text"] is None else {**said, "input_text": found["input_text"]})


def prompt(canvas: Canvas) -> str:
    return (
        "Answer with the next action as a list of one dictionary in <answer> tags, such as "
        "<answer>[{'action': 'click', 'coordinate': [x, y]}]</answer>. "
        f"In a coordinate {canvas.range_in_words}; actions without one have [-100, -100]. The actions are click, "
        "doubleclick, rightclick, long_press and moveto (coordinate), input_text, open_app, scroll, navigate_back, "
        "navigate_home, wait and complete."
    )


DIALECT = Dialect(read, VOCABULARY, words, prompt, has_bare_kinds=True)
