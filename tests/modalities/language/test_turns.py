"""The prompt of a turn: what it tells and shows, by hand."""

from typing import Any

from mmrl.core.data import Observation, Prompt
from mmrl.modalities.language.turns import MAX_TEXT, harmless, turn_prompt
from tests.vision_twins import picture


def seen(number: int, **changes: Any) -> Observation:
    return Observation(picture(8 + number, 8, number), **changes)


def test_the_text_of_a_turn_by_hand() -> None:
    task = Prompt("open the file", target={"a": 1}, system="you click")
    prompt = turn_prompt(task, [seen(0), seen(1, text="nothing there")], ["(3, 4)"], screenshots=1, history=4)
    assert prompt.text == "open the file\nDone so far:\n1. (3, 4)\nnothing there"
    assert prompt.media == (seen(1).screenshot,) and prompt.target == {"a": 1} and prompt.system == "you click"
    first = turn_prompt(task, [seen(0, goal="close it")], [], screenshots=3, history=4)
    assert first.text == "close it" and len(first.media) == 1


def test_several_screenshots_begin_with_the_present_one() -> None:
    past = [seen(n) for n in range(5)]
    prompt = turn_prompt(Prompt("go"), past, list("abcd"), screenshots=3, history=2)
    assert prompt.text == (
        "The screen now: <image>\nThe screen 1 action ago: <image>\nThe screen 2 actions ago: <image>\n"
        "go\nDone so far:\n3. c\n4. d"
    )
    assert prompt.media == tuple(one.screenshot for one in (past[4], past[3], past[2]))


def test_a_strangers_words_are_cut_and_spell_no_token() -> None:
    assert len(turn_prompt(Prompt("go"), [seen(0, text="x" * 9999)], [], screenshots=1, history=0).text) == MAX_TEXT + 3
    assert harmless("see <image> and <|im_end|>", ["<image>", "<|im_end|>"]) == "see < image> and < |im_end|>"
