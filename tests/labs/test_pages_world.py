"""The prompts of the lab of web pages, and a lab without a model."""

import pytest

from mmrl import labs
from mmrl.core.contracts import ConfigError
from mmrl.labs.pages import world
from mmrl.prompts.stream import load_prompts

GOALS = {"form", "menu", "drag", "scroll", "tabs", "dialog", "search", "table"}


def test_every_task_is_asked_for_as_often_in_each_split_and_no_seed_twice() -> None:
    assert set(world.TASKS) >= GOALS
    targets = {}
    for split, count in world.NUM_SEEDS.items():
        prompts = load_prompts(f"lab:pages/{split}")
        targets[split] = [(prompt.target["task"], prompt.target["seed"]) for prompt in prompts]
        assert all(prompt.text == world.TEXT and not prompt.media for prompt in prompts)
        assert [name for name, _ in targets[split][: len(world.TASKS)]] == list(world.TASKS)
        assert all(sum(name == task for name, _ in targets[split]) == count for task in world.TASKS)
    everything = targets["train"] + targets["held_out"]
    assert len(set(everything)) == len(everything)


def test_an_unknown_split_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no split 'heldout' \(did you mean 'held_out'\?\)"):
        load_prompts("lab:pages/heldout")


def test_a_lab_without_a_model_has_prompts_and_says_that_it_has_no_model() -> None:
    assert labs.folder("pages").is_dir()
    with pytest.raises(ValueError, match=r"the lab 'pages' has prompts but no model; those with one are .*shapes"):
        labs.checkpoint("pages")


def test_every_page_loads_what_the_tasks_share_and_says_its_goal() -> None:
    for name in world.TASKS:
        text = (world.FOLDER / f"{name}.html").read_text("utf-8")
        assert 'src="task.js"' in text and "task.declare({" in text and "http" not in text
