"""BrowserGym's calls and observations read and written, and the plug-in on recordings of a real BrowserGym.

`browsergym_recorded.json` is what browsergym-core 0.14.3 with its own Playwright 1.44 and Chromium 150 gave for a page
of ours, with the screenshots as PNG and without the trees of the document.
"""

import base64
import io
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest
from PIL import Image

from mmrl.core.contracts import ConfigError, Environment, RunError
from mmrl.core.data import Observation, Prompt
from mmrl.environments.base.pixels import as_picture, as_pixels
from mmrl.environments.browsergym import BrowserGym, observation_dict, observation_of, read, words
from mmrl.parsing.actions.action import Action
from mmrl.parsing.answers import ParseError
from tests.parameters import in_one_test

RECORDED = json.loads(Path(__file__).with_name("browsergym_recorded.json").read_text("utf-8"))
PAIRS = [
    (Action("click", point=(70, 35)), "mouse_click(70, 35)"),
    (Action("click", point=(70.25, 35)), "mouse_click(70.25, 35)"),
    (Action("right_click", point=(60, 60)), "mouse_click(60, 60, 'right')"),
    (Action("middle_click", point=(60, 60)), "mouse_click(60, 60, 'middle')"),
    (Action("double_click", point=(60, 80)), "mouse_dblclick(60, 80)"),
    (Action("move", point=(5, 6)), "mouse_move(5, 6)"),
    (Action("drag", point=(20, 80), end=(60, 80)), "mouse_drag_and_drop(20, 80, 60, 80)"),
    (Action("scroll", direction="down", amount=100), "scroll(0, 100)"),
    (Action("scroll", direction="left", amount=50.5), "scroll(-50.5, 0)"),
    (Action("scroll", point=(5, 5), direction="up", amount=100), "scroll_at(5, 5, 0, -100)"),
    (Action("type", text='it\'s\n"q"'), "keyboard_type('it\\'s\\n\"q\"')"),
    (Action("hotkey", keys=("ctrl", "a")), "keyboard_press('Control+a')"),
    (Action("hotkey", keys=("enter",)), "keyboard_press('Enter')"),
    (Action("hotkey", keys=("back",)), "go_back()"),
    (Action("wait", amount=0.25), "noop(250)"),
    (Action("answer", text="42"), "send_msg_to_user('42')"),
    (Action("finish", text="failure"), "report_infeasible('failure')"),
]


def recorded(action: str | None) -> dict[str, Any]:
    """Returns the observation after an action, as BrowserGym gave it."""
    found: dict[str, Any] = next(row for row in RECORDED if row["action"] == action)["observation"]
    picture = Image.open(io.BytesIO(base64.b64decode(found["screenshot"])))
    arrays = {"active_page_index": numpy.int64, "elapsed_time": numpy.float64}
    return {
        **{key: numpy.array(value, arrays[key]) if key in arrays else value for key, value in found.items()},
        "screenshot": numpy.asarray(picture.convert("RGB")),
    }


@pytest.mark.parametrize(
    ("action", "text"), PAIRS, ids=[text.split("(")[0] + str(n) for n, (_, text) in enumerate(PAIRS)]
)
def test_an_action_and_its_call_say_the_same(action: Action, text: str) -> None:
    assert words(action) == text
    assert read(text) == (action,)


@in_one_test(
    ("text", "actions"),
    [
        ("mouse_click(x=1, y=2, button='left')", [Action("click", point=(1, 2))]),
        ("mouse_click(1, 2)\nkeyboard_insert_text('a')", [Action("click", point=(1, 2)), Action("type", text="a")]),
        ("keyboard_press('ControlOrMeta++')", [Action("hotkey", keys=("ctrl", "+"))]),
        ("keyboard_press('ArrowDown')", [Action("hotkey", keys=("arrowdown",))]),
        ("noop()", [Action("wait", amount=1)]),
        (
            "scroll(-3, 4)",
            [Action("scroll", direction="left", amount=3), Action("scroll", direction="down", amount=4)],
        ),
        ("click('3')", [Action("click", box=(40, 20, 100, 50))]),
        ("click('3', button='right')", [Action("right_click", box=(40, 20, 100, 50))]),
        ("dblclick('3')", [Action("double_click", box=(40, 20, 100, 50))]),
        ("hover('3')", [Action("move", point=(70, 35))]),
        ("drag_and_drop('3', '4')", [Action("drag", point=(70, 35), end=(60, 80))]),
        (
            "fill('4', 'new')",
            [Action("click", box=(10, 70, 110, 90)), Action("hotkey", keys=("ctrl", "a")), Action("type", text="new")],
        ),
        (
            "clear('4')",
            [
                Action("click", box=(10, 70, 110, 90)),
                Action("hotkey", keys=("ctrl", "a")),
                Action("hotkey", keys=("delete",)),
            ],
        ),
    ],
)
def test_calls_are_read_with_the_boxes_of_elements(text: str, actions: list[Action]) -> None:
    assert list(read(text, recorded(None))) == actions


@in_one_test(
    ("text", "message"),
    [
        ("", "at least one call"),
        ("mouse_click(", "cannot be read as a call"),
        ("mouse_click(1)", "y must be a number"),
        ("mouse_click(1, 2, 'up')", "left, middle or right"),
        ("mouse_dblclick(1, 2, 'right')", "left button"),
        ("scroll(0, 0)", "no direction"),
        ("click('99')", "no element '99'"),
        ("click('1')", "is not visible"),  # the head of the document
        ("click('3', modifiers=['Shift'])", "no action is a click"),
        ("goto('http://example.com')", "no action of ours stands for 'goto'"),
        ("__import__('os')", "no action of ours"),
        ("noop(-5)", "at least 0"),
        ("keyboard_press('')", "needs keys"),
    ],
)
def test_what_is_no_action_is_refused(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        read(text, recorded(None))


@pytest.mark.parametrize(
    "action",
    [
        Action("open", text="mail"),
        Action("triple_click", point=(1, 1)),
        Action("drag", end=(1, 1)),
        Action("hotkey", keys=("foo",)),
    ],
    ids=lambda action: action.kind,
)
def test_what_browsergym_has_no_call_for_is_refused(action: Action) -> None:
    with pytest.raises(ValueError, match=r"BrowserGym has no call|no key"):
        words(action)


def test_a_long_press_is_three_calls_and_a_scroll_takes_the_step_of_the_world() -> None:
    assert words(Action("long_press", point=(1, 2))) == "mouse_down(1, 2)\nnoop(1000)\nmouse_up(1, 2)"
    assert words(Action("scroll", direction="right"), scroll_step=30) == "scroll(30, 0)"


def test_a_recorded_observation_is_read() -> None:
    first = observation_of(recorded(None), is_first=True)
    assert (first.screenshot.size, first.goal, first.text, first.is_done) == ((160, 120), "press it", "", False)
    assert as_pixels(first.screenshot).tolist() == recorded(None)["screenshot"].tolist()
    failed = observation_of(recorded("click('no')"))
    assert (failed.text, failed.goal) == ('ValueError: Could not find element with bid "no"', None)


def test_our_observation_has_the_keys_and_types_of_browsergyms() -> None:
    pixels = numpy.arange(160 * 120 * 3, dtype=numpy.uint8).reshape(120, 160, 3)
    seen = Observation(as_picture(pixels, "x"), "no such place")
    given, theirs = observation_dict(seen, goal="press it", last_action="mouse_click(1, 2)"), recorded(None)
    assert given.keys() == theirs.keys()
    for key, value in given.items():
        assert isinstance(value, type(theirs[key]) if key not in TUPLES else tuple), key
        if isinstance(value, numpy.ndarray):
            assert (value.dtype, value.shape) == (theirs[key].dtype, theirs[key].shape), key
    back = observation_of(given, is_first=True)
    assert (back.goal, back.text) == ("press it", "no such place")
    numpy.testing.assert_array_equal(as_pixels(back.screenshot), pixels)


TUPLES = ("chat_messages", "goal_object", "open_pages_urls", "open_pages_titles")  # lists once they were JSON


class Replayed:
    """An environment that replays the recorded observations of the recorded calls."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.name, self.settings, self.is_closed = name, settings, False
        self.seeds: list[int] = []
        self.calls: list[str] = []

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        self.seeds.append(seed)
        return recorded(None), {}

    def step(self, text: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.calls.append(text)
        row = next(row for row in RECORDED if row["action"] == text)
        return recorded(text), row["reward"], row["terminated"], row["truncated"], {}

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Replayed]:
    """Returns a BrowserGym that replays, and the list of the environments it makes."""
    made: list[Replayed] = []

    def make(name: str, **settings: Any) -> Replayed:
        made.append(Replayed(name, settings))
        return made[-1]

    def modules(name: str, **content: Any) -> None:
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)

    modules("gymnasium", make=make, error=SimpleNamespace(Error=KeyError))
    for name in ("browsergym", "browsergym.core", "browsergym.core.action"):
        modules(name)
    modules("browsergym.core.action.highlevel", HighLevelActionSet=Calls)
    return made


class Calls:
    """A stand-in of BrowserGym's set of calls."""

    def __init__(self, subsets: list[str], multiaction: bool) -> None:
        assert {"coord", "chat"} <= set(subsets) and multiaction

    def to_python_code(self, text: str) -> str:
        return text


def test_an_episode_of_browsergym_is_one_of_ours(made: list[Replayed]) -> None:
    world = BrowserGym(env="browsergym/openended", executable="/usr/bin/chromium")
    assert isinstance(world, Environment)
    first = world.reset(Prompt("x", target={"seed": 3}), 9)
    assert (first.goal, made[0].seeds, made[0].name) == ("press it", [3], "browsergym/openended")
    assert made[0].settings["pw_chromium_kwargs"] == {"executable_path": "/usr/bin/chromium"}
    before = world.state_key()
    assert "no call for a triple_click" in world.step(Action("triple_click", point=(1, 1))).text
    assert (made[0].calls, world.state_key()) == ([], before)
    pressed = world.step(Action("click", point=(70, 35)))
    assert (pressed.is_done, pressed.goal) == (False, None)
    assert pressed.screenshot != first.screenshot and world.state_key() != before
    assert not world.step(Action("answer", text="42")).is_done
    world.reset(Prompt("x"), 9)
    assert made[0].seeds == [3, 9]
    world.close()
    assert made[0].is_closed
    with pytest.raises(RunError, match="no episode"):
        world.step(Action("wait"))


def test_a_finish_ends_the_episode_and_another_task_is_another_environment(made: list[Replayed]) -> None:
    RECORDED.append({**next(row for row in RECORDED if row["terminated"]), "action": "report_infeasible('failure')"})
    world = BrowserGym()
    world.reset(Prompt("x", target={"task": "browsergym/a"}), 0)
    assert world.step(Action("finish", text="failure")).is_done
    assert world.step(Action("wait")).text == "The task is over."
    world.reset(Prompt("x", target={"task": "browsergym/b"}), 0)
    assert [(one.name, one.is_closed) for one in made] == [("browsergym/a", True), ("browsergym/b", False)]


def test_without_a_task_or_without_browsergym_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="give `env`"):
        BrowserGym().reset(Prompt("x"), 0)
    monkeypatch.setitem(sys.modules, "browsergym.core", None)
    with pytest.raises(ConfigError, match="pip install browsergym-core"):
        BrowserGym(env="browsergym/openended").reset(Prompt("x"), 0)
