"""Right and wrong actions by hand, and what GUI-R1's own code let through."""

import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from mmrl.core.config import DatasetSettings, ScoringSettings, load_config
from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.parsing.actions.action import Action
from mmrl.parsing.actions.dialects import DIALECTS
from mmrl.parsing.answers import ParseError
from mmrl.parsing.coordinates import Canvas
from mmrl.rewards.actions.gui_action import GuiAction, words_f1
from mmrl.scoring.scorer import build_scorer
from tests.parameters import in_one_test
from tests.rewards.example import Example
from tests.rewards.example import make_batch as batch_of

Make = Callable[..., RewardBatch]
SCREEN = Canvas((1000, 2000), (500, 1000), "resized")


def judge(action: Action | None, target: dict[str, Any], make_batch: Make, **settings: Any) -> float:
    canvas = settings.pop("canvas", SCREEN)
    batch = make_batch(Outputs(actions=(action,), canvases=(canvas,)), ["do it"], [target])
    return float(GuiAction(**settings).score(batch))


BOX: dict[str, Any] = {"action": "click", "box": (100, 100, 200, 300)}
POINT: dict[str, Any] = {"action": "click", "point": (500, 500)}
TYPED: dict[str, Any] = {"action": "type", "input_text": "shopping mall"}


def batch(actions: list[Action | None], names: list[str]) -> RewardBatch:
    """Actions judged by nothing but the name of the true one: what else a target says is judged where it says it."""
    outputs = Outputs(actions=tuple(actions), canvases=(SCREEN,) * len(actions))
    return batch_of(outputs, ["do it"] * len(actions), [{"action": name} for name in names])


def random_batch(random: random.Random) -> RewardBatch:
    click, back = Action("click", point=(150, 200)), Action("hotkey", keys=("back",))
    said = [None, click, back, Action("hotkey", keys=("home",)), Action("type", text="mall"), Action("wait")]
    return batch([click, None, *random.choices(said, k=10)], ["click"] * 4 + ["press_back"] * 4 + ["input_text"] * 4)


EXAMPLE = Example(
    random_batch=random_batch,
    best=lambda: batch([Action("hotkey", keys=("back",)), Action("wait")], ["press_back", "wait"]),
)


@in_one_test(
    ("action", "target", "score"),
    [
        (Action("click", point=(150, 200)), BOX, 1),
        (Action("click", point=(100, 300)), BOX, 1),  # the border is inside
        (Action("click", box=(140, 190, 160, 210)), BOX, 1),
        (Action("click", point=(99.9, 200)), BOX, 0),
        (Action("double_click", point=(150, 200)), BOX, 0),
        (Action("click", point=(779, 500)), POINT, 1),  # 279 of 1000 pixels are 139.5 of the 500 that the model sees
        (Action("click", point=(781, 500)), POINT, 0),
        (Action("click", point=(698, 698)), POINT, 0),  # 99 pixels seen on each axis: 140.007
        (Action("click", point=(1, 1)), {"action": "click"}, 1),  # the target names no place
        (Action("right_click", point=(500, 500)), {"action": "rightclick", "point": (500, 500)}, 1),
        (Action("move", point=(900, 500)), {"action": "moveto", "point": (500, 500)}, 0),
        (Action("type", text="shanghai shopping mall"), {"action": "type", "input_text": "Shopping mall"}, 1),
        (Action("type", text="mall"), {"action": "type", "input_text": "a shopping mall"}, 1),  # F1 2 / 4
        (Action("type", text="mall"), {"action": "type", "input_text": "the big shopping mall"}, 0),  # F1 2 / 5
        (Action("type", text="[Shopping mall]"), {"action": "type", "input_text": "shopping mall"}, 1),
        (Action("type", text="x"), {"action": "type"}, 1),
        (Action("type", text="red"), {"action": "select", "input_text": "red"}, 1),
        (Action("open", text="Clock"), {"action": "open_app", "input_text": "clock"}, 1),
        (Action("type", text="caf\u00e9"), {"action": "type", "input_text": "cafe\u0301"}, 1),  # composed, both
        (Action("type", text="cafe\u0301"), {"action": "type", "input_text": "caf\u00e9"}, 1),
        (Action("type", text="e" + 31 * "\u0301"), {"action": "type", "input_text": "\u00e9"}, 0),
        (Action("scroll", direction="down"), {"action": "scroll", "input_text": "DOWN"}, 1),
        (Action("scroll", direction="up"), {"action": "swipe", "input_text": "down"}, 0),
        (Action("scroll", is_kind_only=True), {"action": "scroll"}, 1),
        (Action("scroll", is_kind_only=True), {"action": "scroll", "input_text": "down"}, 0),
        (Action("open", is_kind_only=True), {"action": "open_app", "input_text": "clock"}, 0),
        (Action("hotkey", is_kind_only=True), {"action": "hotkey", "input_text": "ctrl c"}, 0),
        (Action("hotkey", keys=("back",)), {"action": "press_back"}, 1),
        (Action("hotkey", keys=("home",)), {"action": "press_back"}, 0),
        (Action("hotkey", keys=("C", "ctrl")), {"action": "hotkey", "input_text": "ctrl+c"}, 1),
        (Action("hotkey", keys=("ctrl",)), {"action": "hotkey", "input_text": "ctrl c"}, 0),
        (Action("finish", text="success"), {"action": "complete"}, 1),
        (Action("wait"), {"action": "complete"}, 0),
        (None, BOX, 0),
        (None, {"action": "wait"}, 0),
    ],
)
def test_right_and_wrong_actions(action: Action | None, target: dict[str, Any], score: float, make_batch: Make) -> None:
    assert judge(action, target, make_batch) == score


def test_the_kind_alone_earns_its_weight(make_batch: Make) -> None:
    """UI-R1: one point for the kind, one for the coordinate."""
    hit, miss = Action("click", point=(150, 200)), Action("click", point=(900, 900))
    other = Action("double_click", point=(150, 200))
    scores = [2 * judge(action, BOX, make_batch, type_weight=0.5) for action in (hit, miss, other, None)]
    assert scores == [2, 1, 0, 0], "a hit by an action of the wrong kind is none"


def test_what_is_no_action_is_worse_than_a_wrong_one_for_agentcpm_gui(make_batch: Make) -> None:
    """-1 malformed, 0 wrong, 1 right: the action, the place, the text."""
    settings = {"malformed": -1.0, "min_f1": 1.0}
    hit, miss = Action("click", point=(150, 200)), Action("click", point=(99, 200))
    said: list[tuple[Action | None, dict[str, Any]]] = [(None, BOX), (Action("wait"), BOX), (miss, BOX), (hit, BOX)]
    said += [(Action("type", text=text), TYPED) for text in ("mall", "mall shopping", "Shopping mall")]
    assert [judge(action, target, make_batch, **settings) for action, target in said] == [-1, 0, 0, 1, 0, 1, 1]
    assert GuiAction(malformed=-1).range == (-1.0, 1.0) and GuiAction().range == (0.0, 1.0)


@pytest.mark.parametrize(
    "text", ["", "<answer>click near the corner</answer>", "<answer>[{'action': 'click'}]</answer>"]
)
def test_an_answer_without_coordinates_is_no_click_on_the_corner(text: str, make_batch: Make) -> None:
    """GUI-R1 reads (0, 0), which is within 140 pixels of a target there."""
    with pytest.raises(ParseError):
        DIALECTS["gui_r1"].parse(text, SCREEN)
    assert judge(None, {"action": "click", "point": (10, 10)}, make_batch) == 0


def test_many_clicks_are_not_one_of_them(make_batch: Make) -> None:
    """GUI-R1 takes the first of the list, InfiGUI-G1 pays ten wrong points with 0.9."""
    clicks = ", ".join(f"{{'action': 'click', 'point': [{x}, 100]}}" for x in range(50, 150, 10))
    with pytest.raises(ParseError):
        DIALECTS["gui_r1"].parse(f"<answer>[{clicks}]</answer>", SCREEN)


@in_one_test(("said", "true"), [("e", "delete"), ("delete", "e"), ("", "delete"), ("del", "delete")])
def test_a_part_of_a_word_is_another_word(said: str, true: str, make_batch: Make) -> None:
    """GUI-R1 takes one word for another where either holds the other."""
    assert judge(Action("type", text=said), {"action": "type", "input_text": true}, make_batch) == 0


def test_a_radius_as_a_share_is_the_same_at_every_resolution(make_batch: Make) -> None:
    for scale in (0.5, 1, 3):
        canvas = Canvas((round(1000 * scale), round(2000 * scale)), (500, 1000), "resized")
        target = {"action": "click", "point": (500 * scale, 1000 * scale)}
        for x, y, score in ((0.63, 0.5, 1), (0.65, 0.5, 0), (0.5, 0.63, 1), (0.5, 0.65, 0), (0.61, 0.61, 0)):
            action = Action("click", point=(x * canvas.original[0], y * canvas.original[1]))
            found = judge(action, target, make_batch, canvas=canvas, radius=0.14, radius_unit="share")
            assert found == score, (scale, x, y)


@in_one_test(
    ("one", "other", "f1"),
    [("a b c", "b c d", 2 / 3), ("a a a", "a", 1), ("", "", 1), ("", "a", 0), ("A b", "a B", 1), ("a b", "c", 0)],
)
def test_f1_of_words_by_hand(one: str, other: str, f1: float) -> None:
    assert words_f1(one, other) == words_f1(other, one) == pytest.approx(f1)


@in_one_test(
    ("target", "message"),
    [
        ({"action": "fly"}, "target.action must be the name of an action, got 'fly' for 'do it'"),
        ({"action": 3}, "target.action must be"),
        ({"action": "scroll", "input_text": "3 times"}, "target.input_text of a scroll must be a direction"),
        ({"action": "type", "input_text": 3}, "target.input_text must be a text"),
        ({"action": "click", "box": (3, 0, 1, 1)}, r"target.box must be \[x1, y1, x2, y2\]"),
        ({"action": "click", "point": (1, 2, 3)}, r"target.point must be \[x, y\]"),
    ],
)
def test_targets_that_cannot_judge(target: dict[str, Any], message: str, make_batch: Make) -> None:
    for action in (None, Action("click", point=(1, 1))):
        with pytest.raises(ValueError, match=message):
            judge(action, target, make_batch)
    with pytest.raises(ValueError, match=message):
        GuiAction().check(Prompt("do it", target=target))


@in_one_test(
    ("settings", "message"),
    [
        ({"type_weight": 1.1}, "type_weight must be"),
        ({"radius": 0}, "radius must be above 0"),
        ({"min_f1": 0}, "min_f1 must be above 0 and at most 1, got 0"),
        ({"malformed": -2}, "malformed must be at least -1 and at most 0, got -2"),
        ({"radius_unit": "inch"}, "radius_unit must be one of pixels, share, got 'inch'"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GuiAction(**settings)


def test_every_action_that_ui_r1s_template_lists_can_earn_full_marks(make_batch: Make) -> None:
    """Theirs pays the kind, and for what is no click the coordinate with it; the template shows no text."""
    config = load_config("ui_r1_qwen25vl_3b")
    assert isinstance(config.prompts.train, DatasetSettings) and config.prompts.train.template is not None
    (listed,) = re.findall(r"one of ([\w, ]+)\)", config.prompts.train.template)
    names = listed.split(", ")
    assert names == ["click", "open_app", "scroll", "navigate_back", "input_text"]
    canvas = Canvas((100, 100), (100, 100), "original")
    read = DIALECTS[config.modality["dialect"]].parse
    said = [f"<answer>[{{'action': '{name}', 'coordinate': [3, 4]}}]</answer>" for name in names]
    others = [*said[1:], said[0]]
    targets = [{"action": name} | ({"box": (1, 1, 9, 9)} if name == "click" else {}) for name in names]
    term = build_scorer(config.rewards[:1], ScoringSettings()).terms[0]
    for answers, score in ((said, 2), (others, 0)):
        actions = tuple(read(answer, canvas) for answer in answers)
        batch = make_batch(Outputs(actions=actions, canvases=(canvas,) * len(names)), names, targets)
        assert isinstance(term.weight, float)
        assert (term.weight * term.reward.score(batch)).tolist() == [score] * len(names)
