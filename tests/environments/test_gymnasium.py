"""Environments of gymnasium as environments of mmrl: rewards, ends, actions and refusals carry over."""

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy
import pytest

from mmrl.core import plugins
from mmrl.core.contracts import ConfigError, Environment, RunError
from mmrl.environments.base.pixels import as_pixels
from mmrl.environments.gymnasium import Gymnasium, as_gymnasium
from mmrl.parsing.actions.action import Action
from tests.environments.dots import Dots, task
from tests.parameters import in_one_test

NAME = "Strip-v0"
SIZE = (60, 20)  # of the picture of six cells


class Strip(gymnasium.Env[Any, Any]):  # type: ignore[misc]  # mypy does not read gymnasium
    """Six cells with the agent on the white cell; the last cell gives reward 1 and ends the episode."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1}  # noqa: RUF012  # gymnasium's own way

    def __init__(self, space: str = "discrete", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.action_space = {
            "discrete": gymnasium.spaces.Discrete(2),
            "cells": gymnasium.spaces.Discrete(6),
            "pairs": gymnasium.spaces.MultiDiscrete([6, 2]),
            "box": gymnasium.spaces.Box(numpy.array([-1.0, 0.0]), numpy.array([1.0, 10.0]), dtype=numpy.float64),
        }[space]
        picture = gymnasium.spaces.Box(0, 255, (20, 60, 3), numpy.uint8)
        self.observation_space = gymnasium.spaces.Dict(view=picture, mission=gymnasium.spaces.Text(40))
        self.actions: list[Any] = []

    def _seen(self) -> dict[str, Any]:
        view = numpy.zeros((20, 60, 3), numpy.uint8)
        view[:, 10 * self.cell : 10 * self.cell + 10] = 255
        return {"view": view, "mission": "right"}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.cell = (options or {}).get("cell", int(self.np_random.integers(3)))
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        if isinstance(self.action_space, gymnasium.spaces.Discrete) and self.action_space.n == 2:
            self.cell = min(max(self.cell + (1 if action else -1), 0), 5)
        return self._seen(), float(self.cell == 5), self.cell == 5, False, {}

    def render(self) -> Any:
        return self._seen()["view"]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    gymnasium.register(NAME, entry_point=lambda **settings: Strip(**settings), max_episode_steps=8)
    yield
    del gymnasium.registry[NAME]


def strip(**settings: Any) -> Gymnasium:
    given = {"env": NAME, "actions": "keys", "keys": {"left": 0, "right": 1, "wait": 0}, **settings}
    world: Gymnasium = plugins.build("environments", {"name": "gymnasium", **given})
    return world


RIGHT, LEFT = Action("hotkey", keys=("Right",)), Action("hotkey", keys=("left",))


def test_an_episode_of_gymnasium_is_one_of_ours() -> None:
    world = strip()
    assert isinstance(world, Environment)
    first = world.reset(task(options={"cell": 3}), 0)
    assert (first.screenshot.size, first.is_done, first.goal) == (SIZE, False, None)
    assert as_pixels(first.screenshot)[5, 35].tolist() == [255, 255, 255]
    second = world.step(RIGHT)
    assert (second.reward, second.is_done) == (0.0, False)
    assert as_pixels(second.screenshot)[5, 45].tolist() == [255, 255, 255]
    last = world.step(RIGHT)
    assert (last.reward, last.is_done, last.text) == (1.0, True, "")
    after = world.step(RIGHT)
    assert (after.reward, after.is_done, after.text) == (0.0, True, "The task is over.")
    world.close()
    world.close()
    with pytest.raises(RunError, match="no episode"):
        world.step(RIGHT)


def test_the_same_seed_and_actions_give_the_same_and_the_targets_seed_counts_first() -> None:
    worlds = [strip(), strip(), strip()]
    seen = [
        world.reset(prompt, seed)
        for world, (prompt, seed) in zip(worlds, [(task(), 5), (task(seed=5), 9), (task(), 5)], strict=True)
    ]
    assert seen[0] == seen[1] == seen[2]
    for action in (RIGHT, RIGHT, LEFT):
        seen = [world.step(action) for world in worlds]
        assert seen[0] == seen[1] == seen[2]
        assert len({world.state_key() for world in worlds}) == 1
    before = worlds[0].state_key()
    worlds[0].step(RIGHT)
    assert worlds[0].state_key() != before
    worlds[0].step(LEFT)
    assert worlds[0].state_key() == before


def test_an_action_without_a_meaning_is_said_and_is_no_step() -> None:
    world = strip()
    world.reset(task(options={"cell": 2}), 0)
    before = world.state_key()
    seen = world.step(Action("hotkey", keys=("ctrl", "c")))
    assert seen.text == "This cannot be done: 'ctrl+c' does nothing here; the keys are left, right, wait."
    assert (seen.is_done, seen.reward, world.state_key()) == (False, 0.0, before)
    assert world._env.unwrapped.actions == []
    world.step(Action("wait", amount=3))
    assert world._env.unwrapped.actions == [0]


def test_a_time_limit_is_said_and_a_finish_ends_without_a_step() -> None:
    world = strip()
    world.reset(task(options={"cell": 0}), 0)
    seen = [world.step(LEFT) for _ in range(8)]
    assert [one.is_done for one in seen] == [False] * 7 + [True]
    assert (seen[-1].text, seen[-1].reward) == ("The time is up.", 0.0)
    world.reset(task(options={"cell": 0}), 0)
    last = world.step(Action("finish"))
    assert (last.is_done, last.reward) == (True, 0.0)


@in_one_test(
    ("space", "grid", "point", "expected"),
    [
        ("cells", (3, 2), (59, 19), 5),  # the last of two rows of three
        ("cells", (3, 2), (20, 9.9), 1),
        ("cells", (6, 1), (29.9, 0), 2),
        ("pairs", None, (30, 10), [3, 1]),
        ("box", None, (45, 5), [0.5, 2.5]),  # three quarters of -1 .. 1, one quarter of 0 .. 10
    ],
)
def test_a_click_is_a_cell_or_a_point_of_the_action_space(
    space: str, grid: tuple[int, int] | None, point: tuple[float, float], expected: Any
) -> None:
    world = strip(actions="clicks", grid=grid, settings={"space": space})
    world.reset(task(options={"cell": 0}), 0)
    assert world.step(Action("click", point=point)).text == ""
    given = world._env.unwrapped.actions[0]
    assert given in world._env.action_space
    numpy.testing.assert_array_equal(given, expected)
    assert "outside of the screen" in world.step(Action("click", point=(60, 0))).text
    assert "only clicks here, no type" in world.step(Action("type", text="x")).text


def test_an_image_and_a_goal_of_a_dict_of_observations() -> None:
    shown, rendered = strip(image="view", goal="mission"), strip()
    first = shown.reset(task(), 3)
    assert first.goal == "right"
    assert as_pixels(first.screenshot).tolist() == as_pixels(rendered.reset(task(), 3).screenshot).tolist()


def own_map(action: Action, size: tuple[int, int], space: Any) -> int:
    if action.point is None:
        raise ValueError("click left or right of the middle")
    return int(action.point[0] > size[0] / 2)


def test_a_function_of_the_user_maps_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "my_map", sys.modules[__name__])
    world = strip(actions="my_map:own_map")
    world.reset(task(options={"cell": 2}), 0)
    world.step(Action("click", point=(50, 3)))
    assert world._env.unwrapped.actions == [1]
    assert world.step(RIGHT).text == "This cannot be done: click left or right of the middle."


@in_one_test(
    ("settings", "words"),
    [
        ({"env": "Strp-v0"}, "Strp"),
        ({"actions": "keyz"}, "'keyz' is none of keys, clicks, and no module:function"),
        ({"actions": "no_such_module:f"}, "cannot import 'no_such_module'"),
        ({"actions": "math:no"}, "math has no function 'no'"),
        ({"actions": "clicks"}, "clicks need a Box or MultiDiscrete of two numbers"),
        ({"actions": "clicks", "grid": (3, 2)}, "with as many cells"),
        ({"image": "pixels"}, "'pixels' is not in what Strip-v0 observes; its keys are"),
        ({"image": "mission"}, r"a picture is an array \[H, W, 3\] of uint8"),
        ({"keys": {}}, "needs `keys`"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium warns of names that are near
        strip(**settings).reset(task(), 0)


def test_without_gymnasium_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    for use in (lambda: strip().reset(task(), 0), lambda: as_gymnasium(Dots(), [task()], (8, 6))):
        with pytest.raises(ConfigError, match=r"pip install 'mmrl\[gymnasium\]'"):
            use()
