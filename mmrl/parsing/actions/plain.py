"""The plain dialect: a click as a point `(x, y)` or a box `[x1, y1, x2, y2]`, as `mmrl.parsing.answers` reads them."""

from mmrl.parsing.actions.action import Action
from mmrl.parsing.actions.dialect import Dialect, place_to_original
from mmrl.parsing.answers import read_place
from mmrl.parsing.coordinates import Canvas, format_box, format_point


def read(text: str, canvas: Canvas) -> Action:
    """Returns a click on the one point or box in the text."""
    point, box = place_to_original(read_place(text), canvas)
    return Action("click", point=point, box=box)


def words(action: Action, canvas: Canvas) -> str:
    """Returns a click as text."""
    if action.box is not None:
        return f"[{format_box(action.box, canvas)}]"
    assert action.point is not None, "a click has a point"
    return f"({format_point(action.point, canvas)})"


def prompt(canvas: Canvas) -> str:
    """Returns a sentence that explains the dialect to a model."""
    return f"Answer with the point to click as (x, y), where {canvas.range_in_words}, counted from the top left corner."


DIALECT = Dialect(read, {"click": "point box"}, words, prompt)
