"""UI-R1's dialect: that of GUI-R1, where a kind may stand without text, `[{'action': 'scroll', 'coordinate': [x, y]}]`.

Lu et al. 2025 (UI-R1, arXiv 2503.21620) teach a model the name and the coordinate of an action, without a text, and
judge actions other than clicks by their names. Such an action has its kind only; a click needs its coordinate.
"""

from mmrl.parsing.actions.action import CLICKS, Action
from mmrl.parsing.actions.dialect import Dialect
from mmrl.parsing.actions.gui_r1 import NO_TEXT, VOCABULARY, Fields, action_of, dictionary, fields_of, kind_of, spelled
from mmrl.parsing.coordinates import Canvas

_ALONE = ("wait", "finish")  # kinds that need no part


def read(text: str, canvas: Canvas) -> Action:
    """Returns the action of the one dictionary in the answer; without a needed text, it is its kind only."""
    written = dictionary(text)
    kind, keys = kind_of(written)
    is_bare = str(written.get("input_text", NO_TEXT)).strip().lower() == NO_TEXT
    needs_no_text = kind in CLICKS or kind in _ALONE or kind == "move" or keys
    return Action(kind, is_kind_only=True) if is_bare and not needs_no_text else action_of(written, canvas)


def words(action: Action, canvas: Canvas) -> str:
    """Returns an action as text."""
    fields = fields_of(action, canvas)
    without_text: Fields = {"action": fields["action"], "coordinate": fields["point"]}
    has_text = fields["input_text"] is not None
    return spelled({**without_text, "input_text": fields["input_text"]} if has_text else without_text)


def prompt(canvas: Canvas) -> str:
    """Returns a paragraph that explains the dialect to a model."""
    return (
        "Answer with the next action as a list of one dictionary in <answer> tags, such as "
        "<answer>[{'action': 'click', 'coordinate': [x, y]}]</answer>. "
        f"In a coordinate {canvas.range_in_words}; actions without one have [-100, -100]. The actions are click, "
        "doubleclick, rightclick, long_press and moveto (coordinate), input_text, open_app, scroll, navigate_back, "
        "navigate_home, wait and complete."
    )


DIALECT = Dialect(read, VOCABULARY, words, prompt, has_bare_kinds=True)
