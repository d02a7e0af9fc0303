"""Environments of mmrl for gymnasium: gymnasium's own check, observations, actions, and the round trip."""

import sys
import warnings
from typing import Any

import gymnasium
import numpy
import pytest

from mmrl.environments.base.pixels import as_pixels
from mmrl.environments.gymnasium import Gymnasium, as_gymnasium
from mmrl.parsing.actions.action import Action
from tests.environments.dots import Dots, task


def test_our_world_passes_gymnasiums_own_check() -> None:
    from gymnasium.utils.env_checker import check_env

    env = as_gymnasium(Dots(), [task(what="a"), task(what="b")], (8, 6))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*Not able to test alternative render modes")  # it is made without a name
        warnings.filterwarnings("ignore", ".*we recommend using a symmetric")  # points are pixels in this project
        check_env(env)
    gymnasium.register("Dots-v0", entry_point=lambda **_: as_gymnasium(Dots(), [task(what="a")], (8, 6)))
    try:
        made = gymnasium.make("Dots-v0")  # with gymnasium's wrappers, which check again
        made.reset(seed=1)
        made.action_space.seed(0)
        for _ in range(50):
            made.step(made.action_space.sample())
        made.close()
        assert made.unwrapped.world.is_closed
    finally:
        del gymnasium.registry["Dots-v0"]


def test_observations_rewards_and_goals_of_our_world_reach_gymnasium() -> None:
    env = as_gymnasium(Dots(), [task(what="a"), task(what="b")], (8, 6))
    seen, info = env.reset(seed=4, options={"prompt": 1})
    assert (seen["goal"], seen["text"], info) == ("paint b", "", {"prompt": 1})
    seen, reward, is_done, is_cut, _ = env.step(env.action_values(Action("click", point=(3, 2))))
    assert (reward, is_done, is_cut, seen["goal"]) == (0.0, False, False, "paint b")
    assert seen["screenshot"][2, 3].tolist() == [255] * 3
    numpy.testing.assert_array_equal(env.render(), seen["screenshot"])
    assert env.step(env.action_values(Action("wait", amount=1)))[0]["text"] == "no wait here"
    assert env.step(env.action_values(Action("click", point=(7, 5))))[1:3] == (1.0, True)


def test_what_is_no_action_is_said_and_never_reaches_the_world() -> None:
    env = as_gymnasium(Dots(), [task(what="a")], (8, 6))
    env.reset(seed=0)
    before = env.world.state_key()
    values = env.action_values(Action("hotkey", keys=("a",)))
    seen, reward, is_done, _, info = env.step({**values, "keys": ""})
    assert seen["text"].startswith("This is no action: a hotkey needs keys")
    assert (reward, is_done, info, env.world.state_key()) == (0.0, False, {"action": None}, before)


@pytest.mark.parametrize(
    "action",
    [
        Action("click", point=(3, 2)),
        Action("long_press", point=(3, 2), amount=2),
        Action("drag", point=(0, 1), end=(5, 4)),
        Action("scroll", point=(3, 2), direction="left", amount=50),
        Action("type", text="hé llo"),
        Action("hotkey", keys=("ctrl", "shift", "k")),
        Action("wait", amount=0.5),
        Action("answer", text="42"),
        Action("finish", text="failure"),
    ],
    ids=lambda action: action.kind,
)
def test_an_action_and_its_values_say_the_same(action: Action) -> None:
    env = as_gymnasium(Dots(), [task(what="a")], (8, 6))
    values = env.action_values(action)
    assert values in env.action_space
    assert env.read(values) == action


def test_an_action_that_the_space_cannot_say_is_refused() -> None:
    env = as_gymnasium(Dots(), [task(what="a")], (8, 6))
    with pytest.raises(ValueError, match="needs its point"):
        env.action_values(Action("drag", end=(1, 1)))


def test_there_and_back_a_world_is_the_same() -> None:
    gymnasium.register("Dots-v0", entry_point=lambda **_: as_gymnasium(Dots(), [task(what="a")], (8, 6)))
    try:
        world = Gymnasium(env="Dots-v0", actions=f"{__name__}:as_values", image="screenshot", goal="goal")
        sys.modules[__name__].SPACE = as_gymnasium(Dots(), [task(what="a")], (8, 6))  # type: ignore[attr-defined]
        assert world.reset(task(), 0).goal == "paint a"
        seen = world.step(Action("click", point=(7, 5)))
        assert (seen.reward, seen.is_done, as_pixels(seen.screenshot)[5, 7].tolist()) == (1.0, True, [255] * 3)
    finally:
        del gymnasium.registry["Dots-v0"]


def as_values(action: Action, size: tuple[int, int], space: Any) -> Any:
    return sys.modules[__name__].SPACE.action_values(action)
