"""The in-process screens: the oracle solves the tasks, chance does not; the same actions give the same episode."""

import random
from dataclasses import replace

import numpy as np
import pytest

from mmrl.core.contracts import ConfigError, Environment
from mmrl.core.data import Observation, Prompt
from mmrl.core.plugins import build
from mmrl.environments.screens import Screens
from mmrl.labs.tasks import world
from mmrl.parsing.actions.action import Action
from tests.parameters import in_one_test

FIRST = world.FIRST_SEED["held_out"]


def prompt(number: int) -> Prompt:
    return Prompt(world.task(number).goal, target={"task": number})


def click(x: float, y: float) -> Action:
    return Action("click", point=(x, y))


def shown(seen: Observation) -> tuple[bytes, str, bool, float, str | None]:
    return np.asarray(seen.screenshot.load()).tobytes(), seen.text, seen.is_done, seen.reward, seen.goal


def wandering(screens: Screens, rng: random.Random) -> Action:
    """Returns the oracle's click, a random click, or an impossible action."""
    kinds = (screens.oracle, lambda: click(rng.randrange(screens.size), rng.randrange(screens.size)))
    return rng.choice((*kinds, *kinds, lambda: Action("type", text="hello")))()


def test_it_is_an_environment_that_a_config_can_name() -> None:
    built = build("environments", {"name": "screens", "size": 448})
    assert isinstance(built, Screens) and isinstance(built, Environment) and built.size == 448


@pytest.mark.parametrize("size", [112, 448])
def test_the_oracle_solves_every_task_and_only_its_last_click_is_rewarded(size: int) -> None:
    screens = Screens(size)
    for number in range(FIRST, FIRST + 64):
        seen, rewards = screens.reset(prompt(number), 0), []
        assert seen.goal == world.task(number).goal and not seen.is_done and seen.screenshot.size == (size, size)
        while not seen.is_done:
            seen = screens.step(screens.oracle())
            rewards.append(seen.reward)
        assert rewards == [0.0] * (len(world.task(number).names) - 1) + [1.0]


@pytest.mark.slow
def test_random_clicks_solve_few_tasks() -> None:
    screens, rng, solved = Screens(), random.Random(0), 0
    for number in range(FIRST, FIRST + 200):
        seen = screens.reset(prompt(number), 0)
        for _ in range(8):
            if not seen.is_done:
                seen = screens.step(click(rng.uniform(0, 112), rng.uniform(0, 112)))
        solved += seen.reward == 1
    assert solved <= 6


def test_the_same_actions_give_the_same_observations_rewards_and_keys() -> None:
    for number in range(FIRST, FIRST + 10):
        one, rng = Screens(), random.Random(number)
        seen = [one.reset(prompt(number), 1)]
        keys, actions = [one.state_key()], []
        for _ in range(8):
            actions.append(wandering(one, rng) if not seen[-1].is_done else click(1, 1))
            seen.append(one.step(actions[-1]))
            keys.append(one.state_key())
        other = replace(one)  # how an agent makes its copies
        again, keys_again = [other.reset(prompt(number), 1)], [other.state_key()]
        for action in actions:
            again.append(other.step(action))
            keys_again.append(other.state_key())
        assert list(map(shown, seen)) == list(map(shown, again)) and keys == keys_again


def test_a_snapshot_brings_back_everything_that_follows() -> None:
    for number in range(FIRST, FIRST + 10):
        screens, rng = Screens(), random.Random(number)
        screens.reset(prompt(number), 0)
        for _ in range(3):
            if not screens.step(wandering(screens, rng)).is_done:
                taken, key = screens.snapshot(), screens.state_key()
        actions = [click(rng.randrange(112), rng.randrange(112)) for _ in range(5)]
        after = []
        for _ in range(2):
            screens.restore(taken)
            assert screens.state_key() == key
            after.append([shown(screens.step(action)) for action in actions])
        assert after[0] == after[1]


def test_states_have_one_key_each_and_a_state_come_back_to_has_its_own_again() -> None:
    screens = Screens()
    for number in range(FIRST, FIRST + 20):
        keys = set()
        states = list(world.reachable(world.task(number)))
        for state in states:
            screens.restore((number, state))
            keys.add(screens.state_key())
        assert len(keys) == len(states)
    screens.reset(prompt(FIRST), 0)
    before = screens.state_key()
    screens.step(click(1, 1))  # the title bar
    assert screens.state_key() == before


@in_one_test(
    ("action", "text"),
    [
        (click(112, 5), "The click was outside of the screen."),
        (click(5, -0.1), "The click was outside of the screen."),
        (Action("type", text="red"), "This screen has no type: it can only be clicked."),
        (Action("long_press", point=(5, 5)), "This screen has no long press: it can only be clicked."),
    ],
)
def test_what_cannot_be_done_changes_nothing_and_says_so(action: Action, text: str) -> None:
    screens = Screens()
    screens.reset(prompt(FIRST), 0)
    before, picture = screens.state_key(), screens.snapshot()
    seen = screens.step(action)
    assert (seen.text, seen.is_done, seen.reward) == (text, False, 0.0)
    assert (screens.state_key(), screens.snapshot()) == (before, picture)


@pytest.mark.parametrize("action", [Action("finish"), Action("answer", text="42")], ids=lambda action: action.kind)
def test_an_agent_that_stops_too_early_gets_nothing(action: Action) -> None:
    screens = Screens()
    screens.reset(prompt(FIRST), 0)
    seen = screens.step(action)
    assert seen.is_done and seen.reward == 0
    late = screens.step(click(1, 1))
    assert late.is_done and late.reward == 0 and late.text == "The task is over."


def test_an_end_is_rewarded_once() -> None:
    screens = Screens()
    seen = screens.reset(prompt(FIRST), 0)
    while not seen.is_done:
        last = screens.oracle()
        seen = screens.step(last)
    assert seen.reward == 1 and screens.step(last).reward == 0


def test_a_click_lands_where_the_larger_picture_shows_it() -> None:
    small, large = Screens(), Screens(896)
    for number in range(FIRST, FIRST + 10):
        small.reset(prompt(number), 0)
        large.reset(prompt(number), 0)
        rng = random.Random(number)
        for _ in range(6):
            x, y = rng.randrange(112), rng.randrange(112)
            seen = [one.step(click(factor * x, factor * y)) for one, factor in ((small, 1), (large, 8))]
            assert small.snapshot() == large.snapshot() and seen[0].reward == seen[1].reward


@in_one_test("target", [{}, {"task": "3"}, {"task": True}, {"answer": 4}])
def test_a_prompt_of_another_set_is_refused_by_name(target: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"plays the tasks of lab:tasks.*'what is it'"):
        Screens().reset(Prompt("what is it", target=target), 0)


@pytest.mark.parametrize("size", [0, 111, 4097])
def test_a_size_out_of_range_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"size must be at least 112 and at most 4,096, got {size}"):
        Screens(size)


def test_before_a_reset_and_after_a_close_there_is_no_task() -> None:
    screens = Screens()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="reset comes first"):
            screens.step(click(5, 5))
        screens.reset(prompt(FIRST), 0)
        screens.close()
        screens.close()
