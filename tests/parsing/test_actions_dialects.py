"""Actions that models write as JSON, as lists or in plain words: one table per dialect, worked out by hand."""

import json
from typing import Any

import pytest

from mmrl.parsing.actions.action import Action
from mmrl.parsing.actions.dialects import DIALECTS
from mmrl.parsing.answers import ParseError
from tests.dialects import AT, THOUSAND, parse
from tests.parameters import in_one_test


def tool_call(**arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': 'computer_use', 'arguments': arguments})}</tool_call>"


@in_one_test(
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


@in_one_test(
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


@in_one_test(
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


@in_one_test(
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


@in_one_test(
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
    assert parse("ui_r1", DIALECTS["ui_r1"].write(action, THOUSAND)) == action
    if action.is_kind_only:
        with pytest.raises(ValueError, match=f"this dialect cannot write a {action.kind} by its kind only"):
            DIALECTS["gui_r1"].write(action, THOUSAND)


@in_one_test(
    "said", ["[{'action': 'click'}]", "[{'action': 'scroll', 'input_text': 'north'}]", "[{'action': 'drag'}]", "[]"]
)
def test_ui_r1_wants_a_place_for_a_click_and_a_text_that_is_one(said: str) -> None:
    with pytest.raises(ParseError):
        parse("ui_r1", f"<answer>{said}</answer>")


def test_a_text_holds_one_action_in_plain_form() -> None:
    assert parse("plain", "It is at (500, 250).") == Action("click", point=AT)
    assert parse("plain", '{"bbox_2d": [400, 200, 600, 300]}') == Action("click", box=(768, 216, 1152, 324))
    for text in ("(1, 2) (3, 4)", "[3, 4, 1, 2]", "nowhere"):
        with pytest.raises(ParseError):
            parse("plain", text)


def test_a_tag_in_typed_text_does_not_end_the_call() -> None:
    typed = Action("type", text="<tool_call>a</tool_call>")
    text = DIALECTS["qwen"].write(typed, THOUSAND)
    assert text.count("<tool_call>") == text.count("</tool_call>") == 1
    assert parse("qwen", text) == typed


@in_one_test(
    ("text", "action"),
    [
        ('{"POINT":[500,250]}', Action("click", point=AT)),
        ('{"thought":"there","POINT":[500,250],"duration":200}', Action("click", point=AT)),
        ('{"POINT":[500,250],"duration":1000}', Action("long_press", point=AT, amount=1)),
        ('{"POINT":[500,250],"to":"up"}', Action("scroll", point=AT, direction="down")),  # the contents go up
        ('{"POINT":[500,250],"to":"left","STATUS":"continue"}', Action("scroll", point=AT, direction="right")),
        ('{"POINT":[0,1000],"to":[500,250]}', Action("drag", point=(0, 1080), end=AT)),
        ('{"PRESS":"BACK"}', Action("hotkey", keys=("back",))),
        ('{"TYPE":"a \\"b\\""}', Action("type", text='a "b"')),
        ('{"duration":3000}', Action("wait", amount=3)),
        ('{"STATUS":"finish"}', Action("finish")),
        ('{"STATUS":"impossible"}', Action("finish", text="failure")),
        ('{"PRESS":"ENTER","STATUS":"finish"}', Action("hotkey", keys=("enter",))),
    ],
)
def test_agentcpm_objects(text: str, action: Action) -> None:
    assert parse("agentcpm", text) == action


@in_one_test(
    "text",
    [
        "",
        "{}",
        '{"POINT":[500,250]} ok',
        '[{"POINT":[500,250]}]',
        '{"POINT":[500,250],"POINT":[1,2]}',
        '{"POINT":[500,250],"PRESS":"BACK"}',
        '{"point":[500,250]}',
        '{"POINT":[500]}',
        '{"POINT":[true,250]}',
        '{"POINT":[500,250],"to":"forward"}',
        '{"POINT":[500,250],"duration":-1}',
        '{"to":"up"}',
        '{"PRESS":"back"}',
        '{"TYPE":3}',
        '{"STATUS":"continue"}',
        '{"STATUS":"done"}',
        '{"thought":"I wait"}',
        '{"thought":3,"PRESS":"BACK"}',
    ],
)
def test_other_agentcpm_objects_are_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse("agentcpm", text)


def test_agentcpm_is_compact() -> None:
    def written(action: Action) -> str:
        return DIALECTS["agentcpm"].write(action, THOUSAND)

    assert written(Action("click", point=AT)) == '{"POINT":[500,250]}'
    assert written(Action("scroll", point=AT, direction="down")) == '{"POINT":[500,250],"to":"up"}'
    assert written(Action("wait", amount=0.25)) == '{"duration":250}'
    assert written(Action("hotkey", keys=("home",))) == '{"PRESS":"HOME"}'
    with pytest.raises(ValueError, match="the buttons HOME, BACK, ENTER, APPSELECT, got ctrl c"):
        written(Action("hotkey", keys=("ctrl", "c")))
