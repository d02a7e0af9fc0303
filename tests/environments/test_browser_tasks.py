"""The shipped web pages: their oracles solve them, chance does not, and an episode can be repeated exactly."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mmrl.core.data import Observation
from mmrl.environments.base.tab import Tab
from mmrl.environments.browser import Browser
from mmrl.labs.pages.world import FIRST_SEED, TASKS
from mmrl.parsing.actions.action import Action
from tests.web_pages import needs_browser, random_action, task

MOST_STEPS = 20  # the longest way of an oracle: three fields with three actions each, a choice, a tick, the button

# all of them start a Chromium
pytestmark = [pytest.mark.slow, needs_browser, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def world() -> Iterator[Browser]:
    browser = Browser(step_seconds=60, load_seconds=240)  # patient with a machine that does much else
    yield browser
    browser.close()


def solved(world: Browser, name: str, seed: int) -> tuple[list[Action], Observation]:
    """Returns the actions of the oracle, and the last observation."""
    actions: list[Action] = []
    seen = world.reset(task(name, seed), 0)
    assert seen.goal and not seen.is_done
    while not seen.is_done and len(actions) < MOST_STEPS:
        action = world.oracle()
        assert action is not None
        actions.append(action)
        seen = world.step(action)
        assert seen.text == "" and seen.reward == float(seen.is_done)
    return actions, seen


@pytest.mark.parametrize("name", TASKS)
def test_the_oracle_solves_every_seed_of_a_task(world: Browser, name: str) -> None:
    for seed in (0, 1, 2, FIRST_SEED["held_out"]):
        actions, last = solved(world, name, seed)
        assert (last.is_done, last.reward) == (True, 1.0), f"{name}, seed {seed}: {actions}"


def test_seeds_make_different_tasks_and_the_oracle_knows_the_small_and_the_large_screen(world: Browser) -> None:
    goals = {world.reset(task("form", seed), 0).goal for seed in range(4)}
    assert len(goals) == 4
    for width, height in ((360, 240), (800, 600)):
        other = replace(world, width=width, height=height)
        try:
            for name in ("scroll", "drag", "menu"):
                assert solved(other, name, 3)[1].reward == 1.0
        finally:
            other.close()


def test_chance_solves_almost_nothing(world: Browser) -> None:
    rewards = []
    for name in TASKS:
        rng = random.Random(name)
        seen = world.reset(task(name, 7), 0)
        for _ in range(12):
            if not seen.is_done:
                seen = world.step(random_action(rng))
        rewards.append(seen.reward)
    assert sum(rewards) <= 1, dict(zip(TASKS, rewards, strict=True))


def test_the_same_task_seed_and_actions_give_the_same_in_another_browser(world: Browser) -> None:
    other = replace(world)
    try:
        for name in ("form", "drag", "search", "scroll"):
            rng = random.Random(name)
            actions: list[Action] = []
            worlds = (world, other)
            seen = [one.reset(task(name, 11), seed) for seed, one in enumerate(worlds)]
            for number in range(9):
                assert seen[0] == seen[1], f"{name} after {actions}"  # pixel for pixel, and words and rewards
                states = [one.within(Tab.state, "reading the page") for one in worlds]  # a difference is seen in words
                assert states[0] == states[1], f"{name} after {actions}"
                assert world.state_key() == other.state_key(), f"{name} after {actions}"
                if seen[0].is_done:
                    break
                way = world.oracle() if number % 3 == 1 else None
                actions.append(way or random_action(rng))
                seen = [one.step(actions[-1]) for one in worlds]
    finally:
        other.close()


def test_two_ways_to_the_same_state_have_one_key_and_an_undone_action_leaves_it(world: Browser) -> None:
    world.reset(task("checklist", 1), 0)
    first = world.oracle()
    assert first is not None and first.point is not None
    click = Action("click", point=first.point)
    world.step(click)
    once = world.state_key()
    x, y = first.point
    world.step(Action("click", point=(x + 1, y + 1)))
    assert world.state_key() != once
    world.step(click)
    assert world.state_key() == once
