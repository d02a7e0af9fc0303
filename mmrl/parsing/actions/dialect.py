"""What a dialect is, and what all of them share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mmrl.parsing.actions.action import Action, Kind
from mmrl.parsing.answers import ParseError
from mmrl.parsing.coordinates import Box, Canvas, Point


@dataclass(frozen=True)
class Dialect:
    """One way of writing actions as text; coordinates are in the unit of the canvas."""

    read: Callable[[str, Canvas], Action]  # raises ValueError where the text is not one action of the dialect
    vocabulary: Mapping[Kind, str]  # what can be written: the kinds, and which parts of each
    words: Callable[[Action, Canvas], str]  # an action that can be written, as text
    prompt: Callable[[Canvas], str]  # a paragraph that tells a model the dialect and the size of the screen
    has_bare_kinds: bool = False  # an action may be its kind only: such answers can be judged, not done

    def parse(self, text: str, canvas: Canvas) -> Action:
        """The one action in a model's text. Raises ParseError, and nothing else, where there is none or more."""
        try:
            return self.read(text, canvas)
        except ParseError:
            raise
        except ValueError as error:  # the rules of Action: here they are about what the model wrote
            raise ParseError(str(error)) from error

    def write(self, action: Action, canvas: Canvas) -> str:
        """The action as text, coordinates rounded to the grid of the canvas: what `parse` reads.

        Raises:
            ValueError: the dialect has no word for the kind, or none for a part that the action has.
        """
        if action.kind not in self.vocabulary:
            raise ValueError(f"this dialect has no {action.kind}; it has {', '.join(self.vocabulary)}")
        if action.is_kind_only and not self.has_bare_kinds:
            raise ValueError(f"this dialect cannot say a {action.kind} by its kind only")
        unsaid = set(action.parts) - set(self.vocabulary[action.kind].split())
        if action.box is not None:
            unsaid -= {"point"}  # the box says it
        if unsaid:
            raise ValueError(f"this dialect cannot say the {' and '.join(sorted(unsaid))} of a {action.kind}")
        return self.words(action, canvas)


def place_to_original(place: Point | Box, canvas: Canvas) -> tuple[Point | None, Box | None]:
    """Point and box of a click that a model wrote as one or the other: one of the two, in original pixels.

    A box whose corners are one point is that point: some models write points in this way.
    """
    if len(place) == 2:
        return canvas.point_to_original(place), None
    if place[:2] == place[2:]:
        return canvas.point_to_original(place[:2]), None
    return None, canvas.box_to_original(place)


def plain_number(value: float) -> str:
    """An amount as text: thousandths at most, whole where it is."""
    rounded = round(value, 3)
    return f"{rounded:.0f}" if rounded == int(rounded) else f"{rounded:.3f}".rstrip("0")
