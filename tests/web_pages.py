"""Browsers for tests: which tests can run here, pages written for one test, and a policy that acts at random."""

import importlib.util
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.data import Observation, Prompt
from mmrl.environments.base.chromium import NAMES
from mmrl.environments.browser import Browser
from mmrl.parsing.actions.action import Action

HAS_BROWSER = importlib.util.find_spec("playwright") is not None and any(map(shutil.which, NAMES))
needs_browser = pytest.mark.skipif(
    not HAS_BROWSER, reason="needs Playwright and a Chromium on PATH (Debian: apt-get install chromium)"
)
WORDS = ("ada", "oslo", "red", "42", "lamp")
SIZE = (480, 360)
PATIENT: dict[str, Any] = {"step_seconds": 60, "load_seconds": 240}  # with a machine that does much else


def slow(test: Any) -> Any:
    """Marks a test that starts a Chromium."""
    for mark in (pytest.mark.slow, needs_browser, pytest.mark.timeout(300)):
        test = mark(test)
    return test


def task(name: str, seed: int = 0) -> Prompt:
    """What names a page."""
    return Prompt("Do the task.", target={"task": name, "seed": seed})


def page(folder: Path, name: str, body: str, script: str = "") -> Prompt:
    """Writes a page whose goal is that its title is `done`."""
    judged = 'window.mmrl = {goal: "make the title done", validate: () => document.title === "done"};'
    text = f"<!doctype html><title>{name}</title><body style='margin:0'>{body}<script>{judged}{script}</script>"
    (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return task(name)


def opened(world: Browser, name: str, body: str, script: str = "") -> Observation:
    """The first sight of a page that is written for it."""
    return world.reset(page(world.pages, name, body, script), 0)


def title(world: Browser) -> str:
    """The title of the page as it is now."""
    assert world._chromium is not None and world._tab is not None
    return str(world._chromium.run(world._tab.page.title(), 20, "the title"))


def random_action(rng: random.Random) -> Action:
    """Any of what a page can do, anywhere on the screen."""

    def point() -> tuple[float, float]:
        return rng.uniform(0, SIZE[0] - 1), rng.uniform(0, SIZE[1] - 1)

    kind = rng.choice(("click",) * 6 + ("type", "drag", "scroll", "double_click", "hotkey", "move"))
    if kind == "type":
        return Action("type", text=rng.choice(WORDS))
    if kind == "drag":
        return Action("drag", point=point(), end=point())
    if kind == "scroll":
        return Action("scroll", point=point(), direction=rng.choice(("up", "down")), amount=rng.uniform(20, 400))
    if kind == "hotkey":
        return Action("hotkey", keys=rng.choice((("tab",), ("enter",), ("ctrl", "a"))))
    if kind == "double_click":
        return Action("double_click", point=point())
    return Action("move", point=point()) if kind == "move" else Action("click", point=point())
