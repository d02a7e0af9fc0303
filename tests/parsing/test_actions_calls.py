"""Actions that models write as calls, worked out by hand; and the reader of calls against Python's."""

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.parsing.actions.action import Action
from mmrl.parsing.actions.calls import Call, quote, read_calls
from mmrl.parsing.answers import ParseError
from tests.dialects import AT, parse
from tests.parameters import in_one_test


@in_one_test(
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


@in_one_test(
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


@in_one_test(
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


@in_one_test(
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
