"""A page that an agent writes: what is shown, which checks it passes, and what is refused."""

from collections.abc import Iterator
from typing import Any

import pytest

from mmrl.core.contracts import ConfigError, Environment, RunError
from mmrl.core.data import Observation, Prompt
from mmrl.environments.written_page import WrittenPage, checks_of
from mmrl.parsing.actions.action import Action
from tests.web_pages import PATIENT, slow

SHOP = """<!doctype html><style>body {margin: 0; background: rgb(0, 0, 255)}</style>
<button onclick="document.querySelector('ul').innerHTML += '<li>Tea</li>'">Add</button><ul class=basket></ul>
<p hidden>Thanks</p>"""
# the first two hold of SHOP; the third does not, since the page is opened anew after the clicks of the second
CHECKS = ["button", ["text=Add", ".basket li"], ".basket li", "p", ["text=Buy", "button"]]


@pytest.fixture(scope="module")
def world() -> Iterator[WrittenPage]:
    made = WrittenPage(width=320, height=240, **PATIENT)
    yield made
    made.close()


def write(world: WrittenPage, document: str) -> Observation:
    return world.step(Action("type", text=document))


def corner(seen: Observation) -> tuple[int, ...]:
    """The colour of the last pixel."""
    image = seen.screenshot.load().convert("RGB")
    assert image.size == (320, 240)
    return tuple(image.getpixel((319, 239)))  # type: ignore[arg-type]


@slow
def test_a_document_is_shown_and_its_reward_is_the_share_of_checks_that_it_passes(world: WrittenPage) -> None:
    assert isinstance(world, Environment)
    begin = world.reset(Prompt("a shop", target={"checks": CHECKS}), 3)
    assert corner(begin) == (255, 255, 255) and begin.goal is None and begin.reward == 0
    blank = world.state_key()
    seen = write(world, SHOP)
    assert corner(seen) == (0, 0, 255) and seen.reward == 2 / 5 and not seen.is_done and not seen.text
    first = world.state_key()
    assert first != blank
    refused = world.step(Action("click", point=(5.0, 5.0)))
    assert "only type" in refused.text and refused.reward == 2 / 5 and world.state_key() == first
    better = write(world, SHOP.replace(" hidden", "").replace("Thanks", "<button>Buy</button>"))
    assert better.reward == 4 / 5 and world.state_key() != first
    assert write(world, SHOP) == seen and world.state_key() == first
    end = world.step(Action("finish"))
    assert end.is_done and end.reward == 2 / 5 and end.screenshot == seen.screenshot
    assert write(world, SHOP).text == "The task is over."
    again = world.reset(Prompt("a shop"), 3)
    assert again == begin and world.state_key() == blank and write(world, SHOP).reward == 0  # without checks


@slow
def test_a_page_can_neither_set_its_goal_nor_answer_its_checks(world: WrittenPage) -> None:
    world.reset(Prompt("a shop", target={"checks": ["nav"]}), 0)
    lies = (
        "<script>window.mmrl = {goal: 'rest', validate: () => 1}; document.querySelector = () => document.body</script>"
    )
    seen = write(world, lies)
    assert seen.goal is None and seen.reward == 0 and not seen.is_done


@slow
def test_a_document_that_hangs_leaves_a_blank_page() -> None:
    world = WrittenPage(width=320, height=240, step_seconds=2, load_seconds=20)
    try:
        world.reset(Prompt("a shop", target={"checks": ["button"]}), 0)
        seen = write(world, f"{SHOP}<script>while (true) {{}}</script>")
        assert "could not be shown" in seen.text and seen.reward == 0 and corner(seen) == (255, 255, 255)
        assert write(world, SHOP).reward == 1
    finally:
        world.close()


@slow
def test_a_document_that_is_too_long_and_checks_that_are_no_selectors(world: WrittenPage) -> None:
    world.reset(Prompt("x"), 0)
    world.most_characters = 10
    try:
        assert "may have 10 characters" in write(world, SHOP).text
    finally:
        world.most_characters = 200_000
    with pytest.raises(ConfigError, match=r"no selector in '\[\['"):
        world.reset(Prompt("x", target={"checks": ["p", "[["]}), 0)


def test_checks_are_selectors_or_lists_of_them() -> None:
    assert checks_of(Prompt("x")) == ()
    assert checks_of(Prompt("x", target={"checks": ["a", ["b", "c"]]})) == (("a",), ("b", "c"))
    wrong: tuple[Any, ...] = ("nav", [""], [[]], [3], None, [["a", 1]])
    for checks in wrong:
        with pytest.raises(ConfigError, match="list of selectors"):
            checks_of(Prompt("x", target={"checks": checks}))
    with pytest.raises(RunError, match="no episode"):
        WrittenPage().step(Action("finish"))
    with pytest.raises(RunError, match="no episode"):
        WrittenPage().state_key()
