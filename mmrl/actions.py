"""What a GUI agent can do, as one type whatever text a model writes it in."""

from dataclasses import dataclass
from typing import Literal, get_args

from mmrl.coordinates import Box, Point

Kind = Literal[
    "click", "double_click", "right_click", "type", "scroll", "drag", "hotkey", "wait", "answer", "finish"
]  # fmt: skip
Direction = Literal["up", "down", "left", "right"]


@dataclass(frozen=True)
class Action:
    """One action of an agent; coordinates are pixels of the original screenshot.

    A click has a `point`, and the `box` if the model answered with one (its centre is then the point). A drag goes
    from `point` to `end`. `text` is what is typed or answered, or the status of a finish.
    Raises ValueError for an unknown kind.
    """

    kind: Kind
    point: Point | None = None
    box: Box | None = None
    end: Point | None = None
    text: str | None = None
    keys: tuple[str, ...] = ()
    direction: Direction | None = None
    amount: float | None = None  # pixels of a scroll, seconds of a wait

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
