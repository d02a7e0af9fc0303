"""The keys and buttons that an action presses, and the refused actions, on a page that records calls."""

import asyncio
from typing import Any

import pytest

from mmrl.environments.base.page_actions import Hands, Refusal
from mmrl.parsing.actions.action import Action
from tests.parameters import in_one_test


class Notes:
    """A stand-in of a Playwright page that records every call by its name and arguments."""

    def __init__(self, path: str = "", calls: list[tuple[Any, ...]] | None = None) -> None:
        self.path, self.calls = path, [] if calls is None else calls

    def __getattr__(self, name: str) -> "Notes":
        return Notes(f"{self.path}.{name}".lstrip("."), self.calls)

    async def __call__(self, *arguments: object, **named: object) -> bool:
        self.calls.append((self.path, *arguments, *named.values()))
        return self.path != "evaluate"  # there is no page to go back to


def done(*actions: Action) -> list[tuple[Any, ...]]:
    """Returns the calls of the actions on a page of 100 x 80 pixels."""
    page = Notes()
    hands = Hands(page, (100, 80), scroll_step=50)

    async def do_all() -> None:
        for action in actions:
            await hands.do(action)

    asyncio.run(do_all())
    return page.calls


def refusal(*actions: Action) -> str:
    with pytest.raises(Refusal) as caught:
        done(*actions)
    return str(caught.value)


@pytest.mark.parametrize(
    ("action", "calls"),
    [
        (Action("click", point=(3, 4.5)), [("mouse.click", 3, 4.5, "left", 1)]),
        (Action("double_click", point=(3, 4)), [("mouse.click", 3, 4, "left", 2)]),
        (Action("triple_click", point=(3, 4)), [("mouse.click", 3, 4, "left", 3)]),
        (Action("right_click", point=(3, 4)), [("mouse.click", 3, 4, "right", 1)]),
        (Action("middle_click", box=(0, 0, 6, 8)), [("mouse.click", 3, 4, "middle", 1)]),
        (Action("move", point=(0, 79)), [("mouse.move", 0, 79)]),
        (
            Action("long_press", point=(3, 4), amount=2.5),
            [("mouse.move", 3, 4), ("mouse.down",), ("clock.run_for", 2500), ("mouse.up",)],
        ),
        (
            Action("drag", point=(1, 2), end=(30, 40)),
            [("mouse.move", 1, 2), ("mouse.down",), ("mouse.move", 30, 40, 8), ("mouse.up",), ("mouse.move", 30, 40)],
        ),
        (Action("scroll", direction="down"), [("mouse.move", 50, 40), ("mouse.wheel", 0, 50)]),
        (
            Action("scroll", direction="left", point=(5, 6), amount=7),
            [("mouse.move", 5, 6), ("mouse.wheel", -7, 0)],
        ),
        (Action("type", text="Hé\n"), [("keyboard.type", "Hé\n")]),
        (
            Action("hotkey", keys=("Ctrl", "shift", "k")),
            [("keyboard.down", key) for key in ("Control", "Shift", "k")]
            + [("keyboard.up", key) for key in ("k", "Shift", "Control")],
        ),
        (Action("hotkey", keys=("esc",)), [("keyboard.down", "Escape"), ("keyboard.up", "Escape")]),
        (Action("wait"), [("clock.run_for", 1000)]),
        (Action("wait", amount=0.25), [("clock.run_for", 250)]),
    ],
    ids=lambda value: value.kind if isinstance(value, Action) else "",
)
def test_an_action_is_these_calls_of_mouse_and_keyboard(action: Action, calls: list[tuple[Any, ...]]) -> None:
    assert done(action) == calls


def test_a_drag_without_a_start_begins_where_a_move_left_the_pointer() -> None:
    calls = done(Action("move", point=(9, 8)), Action("drag", end=(20, 20)))
    assert calls[1:3] == [("mouse.move", 9, 8), ("mouse.down",)]
    assert "needs its start" in refusal(Action("click", point=(9, 8)), Action("drag", end=(20, 20)))


def test_a_refused_action_leaves_the_pointer_where_it_was() -> None:
    hands = Hands(Notes(), (100, 80), scroll_step=50)
    asyncio.run(hands.do(Action("move", point=(9, 8))))
    with pytest.raises(Refusal):
        asyncio.run(hands.do(Action("open", text="mail")))
    assert hands.pointer == (9, 8)


@in_one_test(
    ("action", "words"),
    [
        (Action("click", point=(100, 5)), "(100, 5) is outside of the screen, 100 x 80 pixels"),
        (Action("click", point=(-0.5, 5)), "(-0.5, 5) is outside"),
        (Action("drag", point=(1, 1), end=(5, 80)), "(5, 80) is outside"),
        (Action("open", text="mail"), "a page has no action 'open'"),
        (Action("hotkey", keys=("ctrl", "foo")), "there is no key 'foo'; keys are single characters and ctrl"),
        (Action("hotkey", keys=("é",)), "there is no key 'é'"),
        (Action("hotkey", keys=("back",)), "no page to go back to"),
        (Action("wait", amount=61), "at most 60 seconds"),
        (Action("long_press", point=(1, 1), amount=1e9), "at most 60 seconds"),
        (Action("type", text="x" * 1001), "at most 1000 characters"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words_before_anything_is_pressed(action: Action, words: str) -> None:
    assert words in refusal(action)
    page = Notes()
    with pytest.raises(Refusal):
        asyncio.run(Hands(page, (100, 80), 50).do(action))
    assert [name for name, *_ in page.calls if name != "evaluate"] == []


class Closing:
    """A page whose clock fails `failures` times with `words` before it runs."""

    def __init__(self, failures: int, words: str, is_closed: bool) -> None:
        self.left, self.words, self.is_closed, self.clock, self.ran = failures, words, lambda: is_closed, self, 0

    async def run_for(self, milliseconds: int) -> None:
        if self.left:
            self.left -= 1
            raise OSError(self.words)
        self.ran += milliseconds


@pytest.mark.parametrize(
    ("failures", "words", "is_closed", "is_done"),
    [
        (2, "Target page has been closed", False, True),
        (2, "Target page has been closed", True, False),
        (99, "Target page has been closed", False, False),
        (1, "Target crashed", False, False),
    ],
    ids=["a window", "the page", "without an end", "another error"],
)
def test_the_clock_is_asked_again_where_another_window_closed(
    failures: int, words: str, is_closed: bool, is_done: bool
) -> None:
    page = Closing(failures, words, is_closed)
    work = Hands(page, (100, 80), 50, OSError).run_clock(2)
    if is_done:
        asyncio.run(work)
    else:
        with pytest.raises(OSError, match=words):
            asyncio.run(work)
    assert page.ran == (2000 if is_done else 0)
