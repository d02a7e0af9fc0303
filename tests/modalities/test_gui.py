"""The GUI modality: the model is told its dialect and its screen, and its answers become actions on the original."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from mmrl.core import plugins
from mmrl.core.config import PromptSettings
from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Outputs, Prompt
from mmrl.core.keys import GroupKey
from mmrl.modalities.gui import Gui
from mmrl.parsing.actions.action import Action
from mmrl.parsing.actions.dialects import DIALECTS
from mmrl.parsing.coordinates import Canvas
from mmrl.plans.answers import AnswerPlan
from tests.parameters import in_one_test

CANVAS = Canvas((200, 100), (100, 100), "resized")
CLICK = '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [10, 20]}}'
ANSWERS = {
    "qwen": f"<tool_call>{CLICK}</tool_call>",
    "ui_tars": "Thought: there it is.\nAction: click(start_box='(10,20)')",
    "pyautogui": "pyautogui.click(x=10, y=20)",
    "plain": "(10, 20)",
}


@dataclass(frozen=True)
class Screenshot:
    width: int = 100
    height: int = 60

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.height

    def load(self) -> Image.Image:
        return Image.effect_noise((self.width, self.height), 90).convert("RGB")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("twin")
    Gui(model="Qwen/Qwen2.5-VL-3B-Instruct", dialect="plain").tiny(0, made)
    return made


def prepared(folder: Path, **settings: Any) -> Gui:
    policy = Gui(**{"model": str(folder), "dialect": "qwen", **settings})
    policy.prepare(Placement(torch.device("cpu"), torch.float32))
    return policy


def spoken(policy: Gui, prompt: Prompt) -> str:
    (encoded,) = policy.encode([prompt])
    return policy.decode(encoded.tokens.tolist())


@in_one_test(("dialect", "text"), ANSWERS.items())
def test_an_answer_in_the_dialect_is_an_action_in_pixels_of_the_original(dialect: Any, text: str) -> None:
    policy = Gui(model="a/b", dialect=dialect)
    assert policy.action(text, CANVAS) == Action("click", point=(20.0, 20.0))  # x is twice as wide there
    for other in set(ANSWERS) - {dialect}:
        found = policy.action(ANSWERS[other], CANVAS)
        assert found is None or dialect == "plain"  # which reads any one point


@in_one_test("text", ["", "click the button", "(1, 2) or (3, 4)", "(nan, 2)", "(" * 10_000])
@in_one_test("dialect", list(DIALECTS))
def test_what_is_not_understood_is_none(dialect: Any, text: str) -> None:
    assert Gui(model="a/b", dialect=dialect).action(text, CANVAS) is None


def test_an_action_outside_of_the_action_space_counts_as_not_understood() -> None:
    policy = Gui(model="a/b", dialect="pyautogui", actions=("click", "type"))
    assert policy.action("pyautogui.write('hello')", CANVAS) == Action("type", text="hello")
    assert policy.action("pyautogui.doubleClick(x=10, y=20)", CANVAS) is None
    assert replace(policy, actions=None).action("pyautogui.doubleClick(x=10, y=20)", CANVAS) is not None


def test_no_screen_no_action() -> None:
    assert Gui(model="a/b", dialect="plain").action("(1, 2)", None) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dialect": "plain", "actions": ("type",)}, "that dialect 'plain' has, click; got type"),
        ({"dialect": "qwen", "actions": ()}, "got none"),
    ],
)
def test_an_action_space_that_the_dialect_cannot_say_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Gui(model="a/b", **settings)


def test_unknown_dialects_and_actions_are_the_users_error() -> None:
    with pytest.raises(ConfigError, match="dialect"):
        plugins.build("modalities", {"name": "gui", "model": "a/b", "dialect": "quen"})
    with pytest.raises(ConfigError, match="actions"):
        plugins.build("modalities", {"name": "gui", "model": "a/b", "dialect": "qwen", "actions": ["clik"]})


@pytest.mark.slow
@pytest.mark.parametrize("size", [(100, 60), (20, 300), (57, 29)])
@pytest.mark.parametrize(("budget", "area"), [(None, None), (28 * 28 * 2, 28 * 28 * 3)])
def test_the_prompt_states_the_size_that_the_model_sees(
    folder: Path, size: tuple[int, int], budget: int | None, area: int | None
) -> None:
    policy = prepared(folder, min_pixels=budget, max_pixels=area)
    prompt = Prompt("click OK", (Screenshot(*size),))
    (encoded,) = policy.encode([prompt])  # asserts that the stated size is the processor's
    assert encoded.canvas is not None and encoded.canvas.original == size
    width, height = encoded.canvas.resized
    assert f"The display is {width}x{height}: " in policy.decode(encoded.tokens.tolist())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("convention", "said"), [("thousand", "0 to 1000"), ("original", "0 to 100 and y from 0 to 60")]
)
def test_the_screen_is_told_in_the_unit_of_the_coordinates(folder: Path, convention: Any, said: str) -> None:
    policy = prepared(folder, dialect="ui_tars", coordinates=convention)
    assert said in spoken(policy, Prompt("click OK", (Screenshot(),)))


@pytest.mark.slow
def test_instructions_stand_behind_the_system_message_before_the_prompt_or_nowhere(folder: Path) -> None:
    prompt, words = Prompt("press <image> now", (Screenshot(),)), "Answer with the point to click"
    text = spoken(prepared(folder, dialect="plain", system_prompt="You see."), prompt)
    assert text.index("You see.\n\nAnswer with the point") < text.index("press ")
    text = spoken(prepared(folder, dialect="plain", system_prompt="You see."), replace(prompt, system="I see."))
    assert f"I see.\n\n{words}" in text and "You see." not in text
    text = spoken(prepared(folder, dialect="plain", instructions="prompt", template="T: {prompt}"), prompt)
    assert f"T: {words}" in text and text.index(words) < text.index("\n\npress ")
    assert words not in spoken(prepared(folder, dialect="plain", instructions="none"), prompt)


@pytest.mark.slow
def test_a_smaller_action_space_is_told(folder: Path) -> None:
    prompt = Prompt("press", (Screenshot(),))
    text = spoken(prepared(folder, dialect="pyautogui", actions=("click", "double_click")), prompt)
    assert "Only these actions are allowed: click, double click." in text
    assert "Only these" not in spoken(prepared(folder, dialect="plain", actions=("click",)), prompt)


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["system", "none"])
def test_a_prompt_without_a_screenshot_is_refused(folder: Path, instructions: Any) -> None:
    with pytest.raises(ConfigError, match="prompt 'click OK' has no screenshot"):
        prepared(folder, instructions=instructions).encode([Prompt("click OK")])


@pytest.mark.slow
def test_a_screenshot_that_no_processor_takes_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match="prompt 'click OK': one side may be at most 200 times the other"):
        prepared(folder).encode([Prompt("click OK", (Screenshot(300, 1),))])


@pytest.mark.slow
def test_a_rollout_has_an_action_for_each_answer_and_keeps_its_prompts(folder: Path) -> None:
    policy, prompt = prepared(folder, dialect="plain"), Prompt("click OK", (Screenshot(),), {"box": [1, 2, 3, 4]})
    rollout = policy.rollout([prompt], [AnswerPlan(3, 4)], [GroupKey(0, 0, 0)])
    assert rollout.prompts == (prompt,)
    assert rollout.outputs.actions is not None and len(rollout.outputs.actions) == 3
    given = policy.offline([prompt] * 2, Outputs(texts=("(10, 20)", "nowhere")), [GroupKey(0, 0, n) for n in (0, 1)])
    assert given.outputs.actions is not None and given.outputs.canvases is not None
    canvas, (action, nothing) = given.outputs.canvases[0], given.outputs.actions
    assert canvas is not None and action is not None and nothing is None
    assert action.point == pytest.approx((10 * 100 / canvas.resized[0], 20 * 60 / canvas.resized[1]))


@pytest.mark.slow
def test_the_tiny_twin_speaks_the_same_dialect(folder: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dialect": "ui_tars", "actions": ("click", "scroll"), "instructions": "prompt"}
    twin = Gui(model=str(folder), **settings).tiny(1, tmp_path)
    assert {name: getattr(twin, name) for name in settings} == settings and twin.model == str(tmp_path)


def test_the_reward_of_the_guide_runs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "modalities" / "clicks.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):  # a function, then a class
        exec(code, names)  # as a user's file
    prompt = Prompt("", target={"box": [10, 10, 20, 20]})
    inside, outside = Action("click", point=(10.0, 19.0)), Action("click", point=(20.0, 15.0))
    batch = SimpleNamespace(prompts=(prompt,) * 4, outputs=Outputs(actions=(inside, outside, None, Action("wait"))))
    assert names["ClicksInside"]().score(batch).tolist() == [1.0, 0.0, 0.0, 0.0]
    function, box = names["inside"], prompt.target["box"]
    assert [float(function(action, box)) for action in batch.outputs.actions] == [1.0, 0.0, 0.0, 0.0]


def test_the_settings_of_the_guide_are_right() -> None:
    text = (Path(__file__).parents[2] / "docs" / "modalities" / "clicks.md").read_text(encoding="utf-8")
    settings = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0])
    assert plugins.build("modalities", settings["modality"]).actions == ("click", "type", "scroll", "finish")
    assert plugins.build("samplers", settings["sampler"]).stop == ("</tool_call>",)
    assert PromptSettings(**settings["prompts"]).train is not None
