"""The type of all dialects, in which models write actions, and functions that dialects share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mmrl.parsing.actions.action import Action, Kind
from mmrl.parsing.answers import ParseError
from mmrl.parsing.coordinates import Box, Canvas, Point


@dataclass(frozen=True)
class Dialect:
    """A way of writing actions as text, with coordinates in the unit of the canvas."""

    read: Callable[[str, Canvas], Action]  # text -> action; raises ValueError unless it is one action of the dialect
    vocabulary: Mapping[Kind, str]  # the kinds that can be written, and the parts of each, separated by spaces
    words: Callable[[Action, Canvas], str]  # an action of the vocabulary -> text
    prompt: Callable[[Canvas], str]  # a paragraph that explains the dialect and the size of the screen to a model
    has_bare_kinds: bool = False  # an action may be its kind only: it can be judged, but not executed

    def parse(self, text: str, canvas: Canvas) -> Action:
        """Returns the one action in a model's text. Raises ParseError, and nothing else, for no action or several."""
        try:
            return self.read(text, canvas)
        except ParseError:
            raise
        except ValueError as error:  # of Action, whose rules the model's text breaks
            raise ParseError(str(error)) from error

    def write(self, action: Action, canvas: Canvas) -> str:
        """Returns an action as text that `parse` reads, with coordinates rounded to the grid of the canvas.

        Raises:
            ValueError: the dialect cannot write the kind, or a part that the action has.
        """
        if action.kind not in self.vocabulary:
            raise ValueError(f"this dialect has no {action.kind}; it has {', '.join(self.vocabulary)}")
        if action.is_kind_only and not self.has_bare_kinds:
            raise ValueError(f"this dialect cannot write a {action.kind} by its kind only")
        unwritten = set(action.parts) - set(self.vocabulary[action.kind].split())
        if action.box is not None:
            unwritten -= {"point"}  # it is the centre of the box
        if unwritten:
            raise ValueError(f"this dialect cannot write the {' and '.join(sorted(unwritten))} of a {action.kind}")
        return self.words(action, canvas)


def place_to_original(place: Point | Box, canvas: Canvas) -> tuple[Point | None, Box | None]:
    """Returns the point or the box that a model wrote for a click, in pixels of the original image; the other is None.

    A box whose two corners are equal is that point, since some models write points in this way.
    """
    if len(place) == 2:
        return canvas.point_to_original(place), None
    if place[:2] == place[2:]:
        return canvas.point_to_original(place[:2]), None
    return None, canvas.box_to_original(place)


def plain_number(value: float) -> str:
    """Returns an amount as text, rounded to thousandths, without trailing zeros."""
    rounded = round(value, 3)
    return f"{rounded:.0f}" if rounded == int(rounded) else f"{rounded:.3f}".rstrip("0")
