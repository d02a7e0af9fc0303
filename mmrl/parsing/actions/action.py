"""The actions of GUI agents as one type, whatever dialect a model writes them in."""

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from mmrl.parsing.answers import shown
from mmrl.parsing.coordinates import Box, Point

Kind = Literal[
    "click", "double_click", "triple_click", "right_click", "middle_click", "long_press", "move", "drag", "scroll",
    "type", "hotkey", "wait", "open", "answer", "finish",
]  # fmt: skip
Direction = Literal["up", "down", "left", "right"]

CLICKS: frozenset[Kind] = frozenset(
    {"click", "double_click", "triple_click", "right_click", "middle_click", "long_press"}
)
# The parts of each kind: first those that it needs, then those that it may have.
_PARTS: dict[Kind, tuple[str, str]] = {
    "click": ("point", "box"),
    "double_click": ("point", "box"),
    "triple_click": ("point", "box"),
    "right_click": ("point", "box"),
    "middle_click": ("point", "box"),
    "long_press": ("point", "box amount"),
    "move": ("point", ""),
    "drag": ("end", "point"),
    "scroll": ("direction", "point amount"),
    "type": ("text", ""),
    "hotkey": ("keys", ""),
    "wait": ("", "amount"),
    "open": ("text", ""),
    "answer": ("text", ""),
    "finish": ("", "text"),
}


@dataclass(frozen=True)
class Action:
    """One action of an agent. Coordinates are pixels of the original screenshot, and may lie outside of it.

    The parts that each kind needs, and may have: clicks and `long_press` need a point and may have a box, whose centre
    is the point where none is given; `move` needs a point; `drag` an end, and may have a point; `scroll` a direction,
    and may have a point and an amount; `type`, `open` and `answer` need a text; `hotkey` needs keys; `wait` may have an
    amount and `finish` a text. With `is_kind_only`, a kind that needs more than a point has no parts.

    Raises ValueError for an unknown kind or direction, a missing part, a part that the kind does not have, numbers that
    are not finite, a box without area, a point that is not the centre of its box, an amount below 0, a key with white
    space in its name, and text that cannot be stored as UTF-8.
    """

    kind: Kind
    point: Point | None = None  # of a drag: its start; None: the position of the pointer
    box: Box | None = None  # where the model answered with a box
    end: Point | None = None  # of a drag
    text: str | None = None  # typed, answered, the application to open; of a finish: "success", "failure", a message
    keys: tuple[str, ...] = ()  # pressed together, such as ("ctrl", "c"); a phone's buttons: ("back",), ("home",)
    direction: Direction | None = None  # of the view: "down" shows the content below
    amount: float | None = None  # pixels of a scroll (None: the environment's step), seconds of a wait or long press
    is_kind_only: bool = False  # the model wrote the kind alone: the action can be judged, but not executed

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {shown(str(self.kind))}")
        if self.box is not None:
            self._use_centre(self.box)
        needed, optional = (set(names.split()) for names in _PARTS[self.kind])
        given = set(self.parts)
        if self.is_kind_only:
            if not needed - {"point"}:
                raise ValueError(f"a {self.kind} cannot be its kind only")
            needed, optional = set(), set()
        if needed - given or given - needed - optional:
            has = ", ".join(sorted(needed)) or "nothing"
            may = f" and may have {', '.join(sorted(optional))}" if optional else ""
            raise ValueError(f"a {self.kind} needs {has}{may}, got {', '.join(sorted(given)) or 'nothing'}")
        if not all(map(math.isfinite, [*(self.point or ()), *(self.end or ()), self.amount or 0])):
            raise ValueError(f"coordinates and amounts are finite numbers, got {self.point}, {self.end}, {self.amount}")
        if self.amount is not None and self.amount < 0:
            raise ValueError(f"the amount of a {self.kind} is at least 0, got {self.amount}")
        if self.direction is not None and self.direction not in get_args(Direction):
            raise ValueError(f"direction must be up, down, left or right, got {shown(str(self.direction))}")
        if not all(key and not any(map(str.isspace, key)) for key in self.keys):
            raise ValueError(f"names of keys have no white space, got {shown(str(self.keys))}")
        for text in (self.text or "", *self.keys):
            if any("\ud800" <= character <= "\udfff" for character in text):  # JSON and Python escapes can make these
                raise ValueError("a text holds half of a surrogate pair, which is no character")

    @property
    def parts(self) -> list[str]:
        """The names of the parts that it has, beside the kind."""
        named = [field.name for field in fields(self) if field.name not in ("kind", "is_kind_only")]
        return [name for name in named if getattr(self, name) not in (None, ())]

    def _use_centre(self, box: Box) -> None:
        """Sets the point to the centre of the box, or checks that it is the centre."""
        if not all(map(math.isfinite, box)) or not (box[0] < box[2] and box[1] < box[3]):
            raise ValueError(f"a box is x1, y1, x2, y2 with x1 < x2 and y1 < y2, got {box}")
        centre = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        if self.point is None:
            object.__setattr__(self, "point", centre)  # the only way to fill in a field of a frozen dataclass
        elif max(abs(self.point[axis] - centre[axis]) for axis in (0, 1)) > 1e-6 * max(1, *map(abs, box)):
            raise ValueError(f"the point of a click on a box is its centre {centre}, got {self.point}")
