"""The texts that models emit, one table per dialect, worked out by hand; and the reader of calls against Python's."""

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl._actions.calls import Call, quote, read_calls
from mmrl.actions import DIALECTS, Action, DialectName
from mmrl.answers import ParseError
from mmrl.coordinates import Canvas

SCREEN = Canvas((1920, 1080), (1000, 500), "thousand")  # (500, 250) of the model is (960, 270)
AT = (960.0, 270.0)


def parse(name: DialectName, text: str) -> Action:
    return DIALECTS[name].parse(text, SCREEN)


def tool_call(**arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': 'computer_use', 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"action": "left_click", "coordinate": [500, 250]}, Action("click", point=AT)),
        ({"action": "click", "coordinate": [500, 250.0]}, Action("click", point=AT)),
        ({"action": "right_click", "coordinate": [500, 250]}, Action("right_click", point=AT)),
        ({"action": "middle_click", "coordinate": [500, 250]}, Action("middle_click", point=AT)),
        ({"action": "double_click", "coordinate": [500, 250]}, Action("double_click", point=AT)),
        ({"action": "triple_click", "coordinate": [500, 250]}, Action("triple_click", point=AT)),
        ({"action": "mouse_move", "coordinate": [500, 250]}, Action("move", point=AT)),
        ({"action": "left_click_drag", "coordinate": [500, 250]}, Action("drag", end=AT)),
        (
            {"action": "swipe", "coordinate": [0, 1000], "coordinate2": [500, 250]},
            Action("drag", point=(0, 1080), end=AT),
        ),
        ({"action": "long_press", "coordinate": [500, 250], "time": 2}, Action("long_press", point=AT, amount=2)),
        ({"action": "scroll", "pixels": -100}, Action("scroll", direction="down", amount=108)),
        ({"action": "scroll", "pixels": 50, "coordinate": [500, 250]}, Action("scroll", AT, direction="up", amount=54)),
        ({"action": "hscroll", "pixels": 50}, Action("scroll", direction="right", amount=96)),
        ({"action": "type", "text": "it's\n"}, Action("type", text="it's\n")),
        ({"action": "key", "keys": ["ctrl", "c"]}, Action("hotkey", keys=("ctrl", "c"))),
        ({"action": "key", "text": "volume_up"}, Action("hotkey", keys=("volume_up",))),
        ({"action": "system_button", "button": "Back"}, Action("hotkey", keys=("back",))),
        ({"action": "wait", "time": 0.5}, Action("wait", amount=0.5)),
        ({"action": "wait"}, Action("wait")),
        ({"action": "terminate"}, Action("finish")),
        ({"action": "open", "text": "Clock"}, Action("open", text="Clock")),
        ({"action": "answer", "text": "42"}, Action("answer", text="42")),
        ({"action": "terminate", "status": "failure"}, Action("finish", text="failure")),
    ],
)
def test_qwen_tool_calls(arguments: dict[str, Any], action: Action) -> None:
    assert parse("qwen", "I see it.\n" + tool_call(**arguments)) == action


@pytest.mark.parametrize(
    "text",
    [
        "",
        tool_call(action="left_click", coordinate=[1, 2]) * 2,
        tool_call(action="left_click", coordinate=[1]),
        tool_call(action="left_click", coordinate=["1", "2"]),
        tool_call(action="left_click", coordinate=[True, 2]),
        tool_call(action="left_click", coordinate=[1, 2, 3, 4]),
        tool_call(action="left_click"),
        tool_call(action="left_click_drag", coordinate=[1, 2], coordinate2="x"),
        tool_call(action="scroll", pixels=0),
        tool_call(action="scroll", pixels="3"),
        tool_call(action="key", keys=[1]),
        tool_call(action="key", keys=[]),
        tool_call(action="type", text=None),
        tool_call(action="wait", time=-1),
        tool_call(action="fly"),
        tool_call(action=["left_click"]),
        '<tool_call>{"name": "shell", "arguments": {"action": "type", "text": "x"}}</tool_call>',
        '<tool_call>{"name": "computer_use", "arguments": "x"}</tool_call>',
        '<tool_call>["computer_use"]</tool_call>',
        '<tool_call>{"name": ["computer_use"], "arguments": {}}</tool_call>',
        '<tool_call>{"name": "computer_use", "arguments": {"action": "type", "text": "\\ud83d"}}</tool_call>',
        '{"name": "computer_use", "arguments": {"action": "wait", "time": 1}}',
    ],
)
def test_other_tool_calls_are_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse("qwen", text)


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("[{'action': 'click', 'point': [500, 250], 'input_text': 'no input text'}]", Action("click", point=AT)),
        ('[{"action": "click", "coordinate": [500, 250]}]', Action("click", point=AT)),
        ("{'action': 'Click', 'point': [500.0, 250]}", Action("click", point=AT)),
        ("[{'action': 'doubleclick', 'point': [500, 250]}]", Action("double_click", point=AT)),
        ("[{'action': 'rightclick', 'point': [500, 250]}]", Action("right_click", point=AT)),
        ("[{'action': 'long_press', 'point': [500, 250]}]", Action("long_press", point=AT)),
        ("[{'action': 'moveto', 'point': [500, 250]}]", Action("move", point=AT)),
        ("[{'action': 'scroll', 'point': [-100, -100], 'input_text': 'UP'}]", Action("scroll", direction="up")),
        ("[{'action': 'type', 'input_text': 'it\\'s'}]", Action("type", text="it's")),
        ("[{'action': 'input_text', 'input_text': ''}]", Action("type", text="")),
        ("[{'action': 'select', 'input_text': 'red'}]", Action("type", text="red")),
        ("[{'action': 'open_app', 'input_text': 'Clock'}]", Action("open", text="Clock")),
        ("[{'action': 'press_back'}]", Action("hotkey", keys=("back",))),
        ("[{'action': 'navigate_home'}]", Action("hotkey", keys=("home",))),
        ("[{'action': 'enter'}]", Action("hotkey", keys=("enter",))),
        ("[{'action': 'close/delete'}]", Action("hotkey", keys=("delete",))),
        ("[{'action': 'hotkey', 'input_text': 'ctrl+c'}]", Action("hotkey", keys=("ctrl", "c"))),
        ("[{'action': 'complete', 'point': [-100, -100]}]", Action("finish")),
        ("[{'action': 'wait'}]", Action("wait")),
    ],
)
def test_lists_of_one_dictionary(said: str, action: Action) -> None:
    assert parse("gui_r1", f"<think>I see [1, 2].</think> <answer>{said}</answer>") == action


@pytest.mark.parametrize(
    "said",
    [
        "",
        "[]",
        "[{'action': 'click', 'point': [1, 2]}, {'action': 'click', 'point': [3, 4]}]",
        "[{'action': 'click', 'point': [1, 2], 'coordinate': [3, 4]}]",
        "[{'action': 'click'}]",
        "[{'action': 'click', 'point': [1, 2, 3, 4]}]",
        "[{'action': 'click', 'point': ['1', '2']}]",
        "[{'action': 'click', 'point': [True, 2]}]",
        "[{'action': 'fly', 'point': [1, 2]}]",
        "[{'action': 'drag', 'point': [1, 2]}]",
        "[{'action': ['click'], 'point': [1, 2]}]",
        "[{'action': 'type', 'input_text': 'no input text'}]",
        "[{'action': 'type'}]",
        "[{'action': 'scroll', 'input_text': 'north'}]",
        "[{'action': 'hotkey', 'input_text': ''}]",
        "[{'action': 'press_'}]",
        "click(1, 2)",
        "[{'action': 'wait'}]</answer><answer>[{'action': 'wait'}]",
    ],
)
def test_other_lists_are_refused(said: str) -> None:
    with pytest.raises(ParseError):
        parse("gui_r1", f"<answer>{said}</answer>")
    with pytest.raises(ParseError):
        parse("gui_r1", said)


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("[{'action': 'click', 'coordinate': [500, 250]}]", Action("click", point=AT)),
        ("[{'action': 'scroll'}]", Action("scroll", is_kind_only=True)),
        ("[{'action': 'scroll', 'coordinate': [-100, -100]}]", Action("scroll", is_kind_only=True)),
        ("[{'action': 'scroll', 'input_text': 'no input text'}]", Action("scroll", is_kind_only=True)),
        ("[{'action': 'scroll', 'input_text': 'down'}]", Action("scroll", direction="down")),
        ("[{'action': 'open_app', 'coordinate': [0, 0]}]", Action("open", is_kind_only=True)),
        ("[{'action': 'input_text', 'coordinate': [0, 0]}]", Action("type", is_kind_only=True)),
        ("[{'action': 'hotkey'}]", Action("hotkey", is_kind_only=True)),
        ("[{'action': 'navigate_back', 'coordinate': [0, 0]}]", Action("hotkey", keys=("back",))),
        ("[{'action': 'wait'}]", Action("wait")),
    ],
)
def test_ui_r1_takes_the_kind_of_an_action_that_has_no_text(said: str, action: Action) -> None:
    assert parse("ui_r1", f"<think>?</think> <answer>{said}</answer>") == action
    assert parse("ui_r1", DIALECTS["ui_r1"].write(action, SCREEN)) == action
    if action.is_kind_only:
        with pytest.raises(ValueError, match=f"this dialect cannot say a {action.kind} by its kind only"):
            DIALECTS["gui_r1"].write(action, SCREEN)


@pytest.mark.parametrize(
    "said", ["[{'action': 'click'}]", "[{'action': 'scroll', 'input_text': 'north'}]", "[{'action': 'drag'}]", "[]"]
)
def test_ui_r1_wants_a_place_for_a_click_and_a_text_that_is_one(said: str) -> None:
    with pytest.raises(ParseError):
        parse("ui_r1", f"<answer>{said}</answer>")


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("click(start_box='(500,250)')", Action("click", point=AT)),
        ("click(start_box='<|box_start|>(500,250)<|box_end|>')", Action("click", point=AT)),
        ("click(start_box='<point>500 250</point>')", Action("click", point=AT)),
        ("click(point='<point>500 250</point>')", Action("click", point=AT)),
        ('click(start_point="(500, 250)")', Action("click", point=AT)),
        ("click('(500,250)')", Action("click", point=AT)),
        ("click(start_box='[400,200,600,300]')", Action("click", box=(768, 216, 1152, 324))),
        ("click(start_box='[500, 250, 500, 250]')", Action("click", point=AT)),
        ("left_single(start_box='(500,250)')", Action("click", point=AT)),
        ("left_double(start_box='(500,250)')", Action("double_click", point=AT)),
        ("right_single(start_box='(500,250)')", Action("right_click", point=AT)),
        ("long_press(start_box='(500,250)', time='')", Action("long_press", point=AT)),
        ("drag(start_box='(0,1000)', end_box='(500,250)')", Action("drag", point=(0, 1080), end=AT)),
        (
            "drag(start_point='<point>0 1000</point>', end_point='<point>500 250</point>')",
            Action("drag", point=(0, 1080), end=AT),
        ),
        ("scroll(start_box='(500,250)', direction='down')", Action("scroll", point=AT, direction="down")),
        ("scroll(direction='left')", Action("scroll", direction="left")),
        ("hotkey(key='ctrl c')", Action("hotkey", keys=("ctrl", "c"))),
        ("press_back()", Action("hotkey", keys=("back",))),
        ("press_home()", Action("hotkey", keys=("home",))),
        ("open_app(app_name='Clock')", Action("open", text="Clock")),
        (r"type(content='it\'s \"5\"\n')", Action("type", text='it\'s "5"\n')),
        ("type(content='it's \"5\"\\n')", Action("type", text='it\'s "5"\n')),  # quotes that nobody escaped
        ("type(content='point=start_box=')", Action("type", text="point=start_box=")),  # typed text stays as it is
        ("type(content='a\\\\nb')", Action("type", text="a\\nb")),
        ("type(content='')", Action("type", text="")),
        ("wait()", Action("wait")),
        ("finished()", Action("finish")),
        ("finished(content='42')", Action("finish", text="42")),
        ("call_user()", Action("finish", text="call_user")),
    ],
)
def test_ui_tars_calls(call: str, action: Action) -> None:
    assert parse("ui_tars", f"Thought: The Action: is clear.\nAction: {call}") == action
    assert parse("ui_tars", f"Action:{call}\n") == action


@pytest.mark.parametrize(
    "text",
    [
        "click(start_box='(1,2)')",
        "Action: click(start_box='(1,2)')\nAction: click(start_box='(1,2)')",
        "Action: click(start_box='(1,2)')\n\nclick(start_box='(3,4)')",
        "Action: click(start_box='(1,2)', point='(1,2)')",
        "Action: click(start_box='(1,2) (3,4)')",
        "Action: click(start_box=(1,2))",
        "Action: click(start_box='[3,4,1,2]')",
        "Action: click()",
        "Action: click",
        "Action: click(start_box='')",
        "Action: click(end_box='(1,2)')",
        "Action: drag(start_box='(1,2)')",
        "Action: scroll(start_box='(1,2)')",
        "Action: scroll(direction='north')",
        "Action: hotkey(key='')",
        "Action: hotkey(key=1)",
        "Action: wait(5)",
        "Action: type(content=open('x'))",
        "Action: type(content='a'",
        "Action: type(content=')",
        "Action: fly()",
        "Action: ",
        "Action: type(content='\\ud83d')",
        "Action: type(content='\\U00110000')",
    ],
)
def test_other_ui_tars_calls_are_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse("ui_tars", text)


@pytest.mark.parametrize(
    ("code", "action"),
    [
        ("pyautogui.click(500, 250)", Action("click", point=AT)),
        ("pyautogui.click(x=500, y=250.0)", Action("click", point=AT)),
        ("import pyautogui\nimport time; pyautogui.click(500, y=250) # here", Action("click", point=AT)),
        ("I click.\n```python\npyautogui.click(500, 250)\n```", Action("click", point=AT)),
        ("```pyautogui.click(500, 250)```", Action("click", point=AT)),
        ("pyautogui.click(500, 250, clicks=2)", Action("double_click", point=AT)),
        ("pyautogui.click(500, 250, button='right')", Action("right_click", point=AT)),
        ("pyautogui.doubleClick(500, 250)", Action("double_click", point=AT)),
        ("pyautogui.tripleClick(500, 250)", Action("triple_click", point=AT)),
        ("pyautogui.rightClick(\n  500,\n  250,\n)", Action("right_click", point=AT)),
        ("pyautogui.middleClick(x=500, y=250)", Action("middle_click", point=AT)),
        ("pyautogui.leftClick(x=500, y=250)", Action("click", point=AT)),
        ("pyautogui.moveTo(500, 250, duration=0.5)", Action("move", point=AT)),
        ("pyautogui.dragTo(500, 250, duration=1, button='left')", Action("drag", end=AT)),
        ("pyautogui.moveTo(0, 1000)\npyautogui.dragTo(500, 250)", Action("drag", point=(0, 1080), end=AT)),
        ("pyautogui.scroll(-3)", Action("scroll", direction="down", amount=300)),
        ("pyautogui.scroll(3, x=500, y=250)", Action("scroll", point=AT, direction="up", amount=300)),
        ("pyautogui.hscroll(1)", Action("scroll", direction="right", amount=100)),
        ("pyautogui.write('it\\'s', interval=0.1)", Action("type", text="it's")),
        ('pyautogui.typewrite("""a "b"\nc""")', Action("type", text='a "b"\nc')),
        ("pyautogui.press('enter')", Action("hotkey", keys=("enter",))),
        ("pyautogui.press(' ')", Action("hotkey", keys=("space",))),
        ("pyautogui.hotkey('ctrl', 'c')", Action("hotkey", keys=("ctrl", "c"))),
        ("time.sleep(2)", Action("wait", amount=2)),
        ("pyautogui.sleep(0.5)", Action("wait", amount=0.5)),
        ("WAIT", Action("wait")),
        ("```\nDONE\n```", Action("finish", text="success")),
        ("FAIL", Action("finish", text="failure")),
    ],
)
def test_pyautogui_calls(code: str, action: Action) -> None:
    assert parse("pyautogui", code) == action


@pytest.mark.parametrize(
    "code",
    [
        "",
        "import os",
        "os.system('ls')",
        "click(1, 2)",
        "pyautogui.click",
        "pyautogui.click()",
        "pyautogui.click(1)",
        "pyautogui.click('a.png')",
        "pyautogui.click(1, 2, x=1)",
        "pyautogui.click(x=1, y=2, x=3)",
        "pyautogui.click(1.2.3, 2)",
        "pyautogui.click(1234567890123, 2)",
        "pyautogui.click(1, 2, z=1)",
        "pyautogui.click(1 + 1, 2)",
        "pyautogui.click(*[1, 2])",
        "pyautogui.click(x, y)",
        "pyautogui.click(1e3, 2)",
        "pyautogui.click(0x10, 2)",
        "pyautogui.click(1, 2, clicks=4)",
        "pyautogui.click(1, 2, clicks=2, button='right')",
        "pyautogui.click(1, 2); pyautogui.click(3, 4)",
        "pyautogui.click(1, 2) pyautogui.click(3, 4)",
        "x = pyautogui.click(1, 2)",
        "pyautogui.press(['a', 'b'])",
        "pyautogui.press('a', presses=2)",
        "pyautogui.hotkey()",
        "pyautogui.hotkey(1)",
        "pyautogui.hotkey('a', interval=1)",
        "pyautogui.write(f'{x}')",
        "pyautogui.write('a' 'b')",
        "pyautogui.write(__import__('os').system('ls'))",
        "pyautogui.scroll(0)",
        "pyautogui.scroll(True)",
        "pyautogui.dragTo(1, 2, button='right')",
        "pyautogui.keyDown('a')",
        "pyautogui.__class__()",
        "time.sleep(-1)",
        "```python\nDONE",
        "STOP",
        "(" * 10_000,
        "pyautogui.click(1, 2" + ")" * 10_000,
        "x" * 100_000,
    ],
)
def test_other_code_is_refused(code: str) -> None:
    with pytest.raises(ParseError):
        parse("pyautogui", code)


def test_a_text_holds_one_action_in_plain_form() -> None:
    assert parse("plain", "It is at (500, 250).") == Action("click", point=AT)
    assert parse("plain", '{"bbox_2d": [400, 200, 600, 300]}') == Action("click", box=(768, 216, 1152, 324))
    for text in ("(1, 2) (3, 4)", "[3, 4, 1, 2]", "nowhere"):
        with pytest.raises(ParseError):
            parse("plain", text)


def test_a_tag_in_typed_text_does_not_end_the_call() -> None:
    typed = Action("type", text="<tool_call>a</tool_call>")
    text = DIALECTS["qwen"].write(typed, SCREEN)
    assert text.count("<tool_call>") == text.count("</tool_call>") == 1
    assert parse("qwen", text) == typed


CONSTANTS: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers(-(10**11), 10**11) | st.text(max_size=12)
CONSTANTS |= st.integers(-(10**6), 10**6).map(lambda number: number / 1000)
ARGUMENTS = CONSTANTS | st.lists(CONSTANTS, max_size=3)
NAMES = st.sampled_from(["x", "y", "start_box", "content", "_k1"])


@given(st.lists(ARGUMENTS, max_size=4), st.dictionaries(NAMES, ARGUMENTS, max_size=3), st.booleans())
def test_calls_are_read_as_python_reads_them(
    positional: list[Any], keywords: dict[str, Any], is_python_quoted: bool
) -> None:
    def literal(value: Any) -> str:
        return quote(value) if isinstance(value, str) and not is_python_quoted else repr(value)

    arguments = [*map(literal, positional), *(f"{key}={literal(value)}" for key, value in keywords.items())]
    text = f"module.name({', '.join(arguments)})"
    tree = ast.parse(text, mode="eval").body
    assert isinstance(tree, ast.Call)

    def value_of(node: ast.expr) -> Any:
        found = ast.literal_eval(node)
        return tuple(found) if isinstance(found, list) else found

    (call,) = read_calls(text)
    expected = Call(
        ast.unparse(tree.func),
        tuple(map(value_of, tree.args)),
        {str(keyword.arg): value_of(keyword.value) for keyword in tree.keywords},
    )
    assert call == expected and str(call) == str(expected), "1, 1.0 and True are equal, but not as text"


@pytest.mark.parametrize(
    "literal",
    [
        r"'\x41\u00e9\U0001F600\101\0'",
        r"'\q\ '",
        r"'a\tb\r\n\\'",
        "'''it's ''x'' '''",
        '"""a\n"b" c"""',
        "''",
        "''''''",
    ],
)
@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_escapes_and_quotes_are_those_of_python(literal: str) -> None:
    (call,) = read_calls(f"f({literal})")
    assert call.positional == (ast.literal_eval(literal),)
