"""The shipped checkpoint of the lab of tasks: small, loaded by the Auto classes, and half able."""

from typing import Any

import pytest
import torch

from mmrl.labs.screens.grading import answers
from mmrl.labs.screens.world import CLICK
from mmrl.labs.tasks import grading, world
from mmrl.labs.tasks.pages import BACK

LAB = "tasks"
NUM_TASKS = 32


def first_clicks(model: Any, processor: Any, looks: list[Any], goals: list[str]) -> list[tuple[int, int]]:
    """The likeliest clicks; (0, 0) for what is none."""
    texts = answers(model, processor, goals, [look.render() for look in looks], is_greedy=True)
    found = [CLICK.fullmatch(text) for text in texts]
    return [(0, 0) if match is None else (int(match[1]), int(match[2])) for match in found]


@pytest.mark.slow  # trains
def test_it_was_spoilt_but_not_beyond_repair(model: Any, processor: Any) -> None:
    """Sampled episodes mostly fail, and greedy ones do better: that is what RL mends."""
    torch.manual_seed(0)
    sampled = grading.success(model, processor, is_greedy=False, num_tasks=24)
    greedy = grading.success(model, processor, is_greedy=True, num_tasks=24)
    assert 0.1 < sampled < greedy < 0.95


@pytest.mark.slow
def test_it_looks_at_the_page_and_reads_the_goal(model: Any, processor: Any) -> None:
    """On the page of another task, or with another goal, it clicks elsewhere."""
    tasks = [world.task(world.FIRST_SEED["held_out"] + number) for number in range(NUM_TASKS)]
    looks, goals = [task.look(world.State()) for task in tasks], [task.goal for task in tasks]
    own = first_clicks(model, processor, looks, goals)
    other_page = first_clicks(model, processor, [*looks[1:], looks[0]], goals)
    other_goal = first_clicks(model, processor, looks, [*goals[1:], goals[0]])
    for other in (other_page, other_goal):
        assert sum(a != b for a, b in zip(own, other, strict=True)) > 0.6 * NUM_TASKS


@pytest.mark.slow
def test_it_goes_back_where_nothing_that_is_named_is_there(model: Any, processor: Any) -> None:
    looks, goals = [], []
    for number in range(NUM_TASKS):
        task = world.task(world.FIRST_SEED["held_out"] + number)
        looks.append(task.look(world.State(page=len(task.pages) - 1)))  # the last page of every task is astray
        goals.append(task.goal)
    x1, y1, x2, y2 = BACK.box
    clicks = first_clicks(model, processor, looks, goals)
    assert sum(x1 <= x <= x2 and y1 <= y <= y2 for x, y in clicks) > 0.6 * NUM_TASKS
