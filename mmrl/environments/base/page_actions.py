"""Actions by the mouse and the keyboard of a page; an impossible action is refused with its reason."""

from typing import Any

from mmrl.parsing.actions.action import Action, Kind
from mmrl.parsing.coordinates import Point

from .key_names import BACK, pressed

LONGEST_WAIT = 60.0  # seconds of the page's clock
LONGEST_TEXT = 1000  # characters typed by one action
WINDOWS = 20  # the most windows that may close, one after another, while the clock should run
DRAG_STEPS = 8  # places where a page sees the pointer during a drag
_BUTTONS: dict[Kind, tuple[str, int]] = {
    "click": ("left", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
}
_TURNS: dict[str | None, tuple[int, int]] = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}

Raised = type[Exception] | tuple[type[Exception], ...]


class Refusal(Exception):
    """The error of an impossible action, which has changed nothing. Its text is for the agent."""


class Hands:
    """The mouse and the keyboard of one page; `size` is that of the screenshot, width and height in pixels.

    `error` is the class of errors that the page's calls raise where a window is closed.

    `pointer` is where a `move` left the pointer, and None after the next action at another place. A drag without a
    start begins there and nowhere else, so that its result does not depend on the pixel that was clicked before.
    """

    def __init__(self, page: Any, size: tuple[int, int], scroll_step: float, error: Raised = ()) -> None:
        self.page, self.size, self.scroll_step = page, size, scroll_step
        self.error = error
        self.pointer: Point | None = None

    async def do(self, action: Action) -> None:
        """Does the action; raises Refusal, before anything has changed, where the action is impossible."""
        for point in (action.point, action.end):
            if point is not None and not (0 <= point[0] < self.size[0] and 0 <= point[1] < self.size[1]):
                width, height = self.size
                raise Refusal(f"({point[0]:g}, {point[1]:g}) is outside of the screen, {width} x {height} pixels")
        await self._do(action)
        if action.kind == "move":
            self.pointer = action.point
        elif action.point is not None or action.end is not None:
            self.pointer = None

    async def _do(self, action: Action) -> None:
        kind = action.kind
        if kind in _BUTTONS:
            button, count = _BUTTONS[kind]
            await self.page.mouse.click(*_there(action.point), button=button, click_count=count)
        elif kind == "move":
            await self.page.mouse.move(*_there(action.point))
        elif kind == "long_press":
            await self._long_press(_there(action.point), _seconds(action))
        elif kind == "drag":
            await self._drag(action.point or self.pointer, _there(action.end))
        elif kind == "scroll":
            await self._scroll(action, action.point or self.pointer or (self.size[0] / 2, self.size[1] / 2))
        elif kind == "type":
            await self._type(action.text or "")
        elif kind == "hotkey":
            await self._press(action.keys)
        elif kind == "wait":
            await self.run_clock(_seconds(action))
        else:
            raise Refusal(f"a page has no action {kind!r}")

    async def run_clock(self, seconds: float) -> None:
        """Lets time pass on the page's clock, without waiting.

        All pages of the context share the clock. Where a window that the page opened is closed during the call, the
        clock has run in no page, and the call is repeated.
        """
        for attempt in range(WINDOWS):
            try:
                await self.page.clock.run_for(round(1000 * seconds))
                return
            except self.error as error:
                if "has been closed" not in str(error) or self.page.is_closed() or attempt == WINDOWS - 1:
                    raise

    async def _long_press(self, point: Point, seconds: float) -> None:
        await self.page.mouse.move(*point)
        await self.page.mouse.down()
        await self.run_clock(seconds)
        await self.page.mouse.up()

    async def _drag(self, start: Point | None, end: Point) -> None:
        if start is None:
            raise Refusal("a drag needs its start, or a move to the start just before")
        await self.page.mouse.move(*start)
        await self.page.mouse.down()
        await self.page.mouse.move(*end, steps=DRAG_STEPS)
        await self.page.mouse.up()
        await self.page.mouse.move(*end)  # a drop ends in its own time: this comes after it, and finds what lies there

    async def _scroll(self, action: Action, point: Point) -> None:
        amount = self.scroll_step if action.amount is None else action.amount
        x, y = _TURNS[action.direction]
        await self.page.mouse.move(*point)
        await self.page.mouse.wheel(x * amount, y * amount)

    async def _type(self, text: str) -> None:
        if len(text) > LONGEST_TEXT:
            raise Refusal(f"at most {LONGEST_TEXT} characters are typed at once, got {len(text)}")
        await self.page.keyboard.type(text)

    async def _press(self, keys: tuple[str, ...]) -> None:
        if tuple(key.lower() for key in keys) == (BACK,):
            if not await self.page.evaluate("navigation.canGoBack"):
                raise Refusal("there is no page to go back to")
            await self.page.go_back()
            return
        try:
            names = pressed(keys)
        except ValueError as error:
            raise Refusal(str(error)) from error
        down = []
        try:
            for name in names:
                await self.page.keyboard.down(name)
                down.append(name)
        finally:
            for name in reversed(down):
                await self.page.keyboard.up(name)


def _there(point: Point | None) -> Point:
    assert point is not None, "Action has checked that a point is there"
    return point


def _seconds(action: Action) -> float:
    seconds = 1.0 if action.amount is None else action.amount
    if seconds > LONGEST_WAIT:
        raise Refusal(f"at most {LONGEST_WAIT:g} seconds pass at once, got {seconds:g}")
    return seconds
