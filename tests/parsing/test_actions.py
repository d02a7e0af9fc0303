"""Actions and their rules, and what all dialects promise."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.parsing.actions.action import CLICKS, Action, Kind
from mmrl.parsing.actions.dialects import DIALECTS, DialectName
from mmrl.parsing.coordinates import Canvas, Convention
from tests.dialects import NAMES, SCREEN
from tests.parameters import in_one_test

GRID = {"original": 1.0, "resized": 1.0, "thousand": 1.0, "unit": 0.001}


@in_one_test(
    ("kind", "parts", "message"),
    [
        ("clik", {}, "kind must be one of click, "),
        ("click", {}, "a click needs point and may have box, got nothing"),
        ("click", {"point": (1, 2), "text": "x"}, "a click needs point and may have box, got point, text"),
        ("drag", {"point": (1, 2)}, "a drag needs end and may have point, got point"),
        ("type", {}, "a type needs text, got nothing"),
        ("scroll", {"amount": 3}, "a scroll needs direction and may have amount, point, got amount"),
        ("wait", {"keys": ("a",)}, "a wait needs nothing and may have amount, got keys"),
        ("hotkey", {"keys": ()}, "a hotkey needs keys, got nothing"),
        ("hotkey", {"keys": ("ctrl c",)}, "names of keys have no white space"),
        ("hotkey", {"keys": ("",)}, "names of keys have no white space"),
        ("click", {"point": (float("nan"), 2)}, "finite numbers"),
        ("drag", {"end": (1, float("inf"))}, "finite numbers"),
        ("wait", {"amount": float("inf")}, "finite numbers"),
        ("wait", {"amount": -1}, "the amount of a wait is at least 0, got -1"),
        ("scroll", {"direction": "north"}, "direction must be up, down, left or right, got 'north'"),
        ("click", {"box": (3, 1, 2, 2)}, "x1 < x2 and y1 < y2"),
        ("click", {"box": (1, 1, 2, 1)}, "x1 < x2 and y1 < y2"),
        ("click", {"box": (1, 1, float("inf"), 2)}, "x1 < x2 and y1 < y2"),
        ("click", {"box": (0, 0, 4, 2), "point": (2, 2)}, r"is its centre \(2.0, 1.0\), got \(2, 2\)"),
        ("type", {"text": "\ud83d"}, "surrogate"),
    ],
)
def test_an_action_has_the_parts_of_its_kind(kind: Any, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Action(kind, **parts)


def test_a_click_on_a_box_is_a_click_on_its_centre() -> None:
    assert Action("click", box=(0, 0, 4, 2)) == Action("click", box=(0, 0, 4, 2), point=(2, 1))


@in_one_test("kind", ["click", "move", "wait", "finish"])
def test_what_needs_a_point_or_nothing_is_never_its_kind_only(kind: Any) -> None:
    with pytest.raises(ValueError, match=f"a {kind} cannot be its kind only"):
        Action(kind, is_kind_only=True)
    with pytest.raises(ValueError, match="a scroll needs nothing, got direction"):
        Action("scroll", direction="up", is_kind_only=True)


def test_an_empty_text_is_a_text_and_an_amount_of_nothing_an_amount() -> None:
    assert Action("type", text="").parts == ["text"]
    assert Action("wait", amount=0).parts == ["amount"]


@st.composite
def canvases(draw: st.DrawFn) -> Canvas:
    side = st.integers(50, 4000)
    convention: Convention = draw(st.sampled_from(["original", "resized", "thousand", "unit"]))
    return Canvas((draw(side), draw(side)), (draw(side), draw(side)), convention)


KEYS = st.sampled_from(["ctrl", "c", "enter", "shift", "'", '"', "\\", "back", "é"])
BUTTONS = st.sampled_from(["home", "back", "enter", "appselect"])
NASTY = [
    "it's",
    "a \"b\" 'c'\n",
    "</tool_call>",
    "<tool_call>",
    "\\n",
    "```",
    "\nAction: wait()",
    "')",
    "",
    "\x00\u2028",
    "\\",
]
TYPED = st.text(max_size=30) | st.sampled_from(NASTY)


@st.composite
def actions(draw: st.DrawFn, name: DialectName, canvas: Canvas) -> Action:
    """Any action that the dialect can write, inside or outside of the screen."""
    vocabulary = DIALECTS[name].vocabulary
    kind: Kind = draw(st.sampled_from(sorted(vocabulary)))
    share = st.floats(-0.5, 1.5)
    width, height = canvas.original
    points = st.tuples(share.map(lambda x: x * width), share.map(lambda y: y * height))
    parts: dict[str, Any] = {}
    for part in vocabulary[kind].split():
        is_phone = name == "agentcpm"  # which has four buttons, and says how long it waits
        is_needed = is_phone or (kind, part) not in [("finish", "text"), ("wait", "amount"), ("long_press", "amount")]
        if part in ("point", "end"):
            parts[part] = draw(points)
        elif part == "box" and draw(st.booleans()):
            del parts["point"]
            x, y = draw(points)
            parts["box"] = (x, y, x + 0.05 * width, y + 0.05 * height)
        elif part == "direction":
            parts[part] = draw(st.sampled_from(["up", "down", "left", "right"]))
        elif part == "text":
            parts[part] = draw(st.sampled_from(["success", "failure"]) if kind == "finish" else TYPED)
        elif part == "keys":
            parts[part] = (draw(BUTTONS),) if is_phone else tuple(draw(st.lists(KEYS, min_size=1, max_size=3)))
        elif part == "amount" and (is_needed or draw(st.booleans())):
            least = 201 if is_phone else 0  # a shorter press is a click there
            parts[part] = (
                100.0 * draw(st.integers(1, 30)) if kind == "scroll" else draw(st.integers(least, 9000)) / 1000
            )
    return Action(kind, **parts)


def assert_close(one: Action, other: Action, canvas: Canvas) -> None:
    """The same action, coordinates within half a unit of the convention's grid."""
    assert (one.kind, one.parts, one.text, one.keys) == (other.kind, other.parts, other.text, other.keys)
    assert one.direction == other.direction
    assert canvas.convention is not None
    half = [
        GRID[canvas.convention] * side / span / 2 + 1e-6
        for side, span in zip(canvas.original, canvas.span, strict=True)
    ]
    for left, right in ((one.point, other.point), (one.end, other.end), (one.box, other.box)):
        for axis, (a, b) in enumerate(zip(left or (), right or (), strict=True)):
            assert abs(a - b) <= half[axis % 2]
    if one.amount is not None and other.amount is not None:
        assert abs(one.amount - other.amount) <= (max(half) if one.kind == "scroll" else 1e-9)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_an_action_comes_back_from_its_text(name: DialectName, data: st.DataObject) -> None:
    dialect = DIALECTS[name]
    canvas = data.draw(canvases())
    action = data.draw(actions(name, canvas))
    text = dialect.write(action, canvas)
    parsed = dialect.parse(text, canvas)
    assert_close(action, parsed, canvas)
    assert dialect.write(parsed, canvas) == text, "what stands on the grid stays there"


@in_one_test("name", ["agentcpm", "gui_r1", "pyautogui", "qwen", "ui_tars"])
@in_one_test("text", NASTY)
def test_typed_text_never_breaks_out_of_its_call(name: DialectName, text: str) -> None:
    typed = Action("type", text=text)
    assert DIALECTS[name].parse(DIALECTS[name].write(typed, SCREEN), SCREEN) == typed


@in_one_test("name", NAMES)
@in_one_test("convention", ["original", "resized", "thousand", "unit"])
def test_every_dialect_clicks_where_it_is_told(name: DialectName, convention: Convention) -> None:
    canvas = Canvas((1920, 1080), (1932, 1092), convention)
    clicked = DIALECTS[name].parse(DIALECTS[name].write(Action("click", point=(1440, 270)), canvas), canvas)
    assert clicked.kind == "click" and clicked.point == pytest.approx((1440, 270), abs=1)


@in_one_test("name", NAMES)
def test_what_a_dialect_cannot_say_is_an_error_and_never_lost(name: DialectName) -> None:
    dialect = DIALECTS[name]
    unsaid = {"plain": "drag", "pyautogui": "open", "qwen": None, "ui_tars": "answer"}.get(name)
    samples: dict[str | None, Action] = {
        "drag": Action("drag", end=(1, 2)),
        "open": Action("open", text="x"),
        "answer": Action("answer", text="x"),
    }
    if unsaid:
        with pytest.raises(ValueError, match=f"this dialect has no {unsaid}; it has "):
            dialect.write(samples[unsaid], SCREEN)
    if name in ("pyautogui", "qwen"):
        with pytest.raises(ValueError, match="cannot write the box of a click"):
            dialect.write(Action("click", box=(1, 1, 3, 3)), SCREEN)
        with pytest.raises(ValueError, match="needs the amount of a scroll"):
            dialect.write(Action("scroll", direction="up"), SCREEN)
    if name == "ui_tars":
        with pytest.raises(ValueError, match="cannot write the amount of a scroll"):
            dialect.write(Action("scroll", direction="up", amount=100), SCREEN)
        with pytest.raises(ValueError, match="needs the point where a drag begins"):
            dialect.write(Action("drag", end=(1, 2)), SCREEN)


@in_one_test("name", NAMES)
def test_a_prompt_tells_the_size_of_the_screen(name: DialectName) -> None:
    assert "x runs from 0 to 1932 and y from 0 to 1092" in DIALECTS[name].prompt(SCREEN)
    thousand = DIALECTS[name].prompt(Canvas((1920, 1080), (1932, 1092), "thousand"))
    assert "x runs from 0 to 1000 and y from 0 to 1000" in thousand and "19" not in thousand
    assert "\n" not in thousand, "one paragraph"


def test_clicks_are_the_kinds_that_press_at_a_point() -> None:
    assert {kind for kind in CLICKS if Action(kind, point=(1, 2)).point == (1, 2)} == CLICKS
