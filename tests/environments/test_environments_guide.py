"""The environment in docs/environments.md is a valid one."""

import re
from pathlib import Path
from typing import Any

from mmrl.core.contracts import Environment
from mmrl.core.data import Prompt
from mmrl.parsing.actions.action import Action


def test_the_world_of_the_guide_is_an_environment_that_can_be_solved() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "environments.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    written: dict[str, Any] = {"__name__": "guide"}
    exec(code, written)
    world = written["Corridor"](length=2)
    assert isinstance(world, Environment)
    assert world.reset(Prompt("x"), 0).goal == "go to the right end"
    before = world.state_key()
    assert world.step(Action("wait")).text == "there is no wait here" and world.state_key() == before
    right = Action("click", point=(80, 5))
    assert [world.step(right).reward for _ in range(2)] == [0.0, 1.0]
