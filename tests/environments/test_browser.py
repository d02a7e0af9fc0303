"""Web pages in a real Chromium: observations and actions of an agent, and the errors without a Chromium."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmrl.core import plugins
from mmrl.core.contracts import ConfigError, Environment, RunError
from mmrl.core.data import Prompt
from mmrl.environments.base.chromium import find_executable
from mmrl.environments.browser import Browser
from mmrl.parsing.actions.action import Action
from tests.web_pages import SIZE, opened, page, slow, task, title


def test_it_is_an_environment_whose_settings_are_checked(tmp_path: Path) -> None:
    assert isinstance(plugins.build("environments", {"name": "browser", "width": 640}), Environment)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"width": 5}, "width"),
        ({"dialogs": "ask"}, "dialogs"),
        ({"step_seconds": 0}, "step_seconds"),
        ({"folder": str(tmp_path / "no")}, "is no folder"),
    ]
    for settings, words in wrong:
        with pytest.raises(ConfigError, match=words):
            plugins.build("environments", {"name": "browser", **settings})


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"task": "from", "seed": 1}, "one of checklist, date, .*; got 'from'"),
        ({"seed": 1}, "got None"),
        ({"task": "form", "seed": "1"}, "whole number, got '1'"),
    ],
)
def test_a_prompt_that_names_no_page_is_refused_before_a_browser_starts(target: dict[str, Any], words: str) -> None:
    browser = Browser()
    with pytest.raises(ConfigError, match=words):
        browser.reset(Prompt("x", target=target), 0)
    assert browser._chromium is None


def test_without_a_chromium_the_error_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    own = tmp_path / "own"
    with pytest.raises(ConfigError, match=r"playwright install chromium.*apt-get install chromium"):
        find_executable(None, own)
    with pytest.raises(ConfigError, match="'netscape' is no program"):
        find_executable("netscape", own)
    (program := tmp_path / "chromium").write_text("")
    program.chmod(0o755)
    assert find_executable(None, own) == str(program)
    own.write_text("")
    assert find_executable(None, own) == str(own)


def test_without_playwright_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "playwright", None)
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    with pytest.raises(ConfigError, match=r"pip install 'mmrl\[browser\]'"):
        Browser().reset(task("form"), 0)


def test_a_world_that_was_never_opened_can_be_closed_and_asked_nothing() -> None:
    browser = Browser()
    browser.close()
    browser.close()
    for question in (browser.state_key, browser.oracle, lambda: browser.step(Action("wait"))):
        with pytest.raises(RunError, match="no episode has begun"):
            question()


@slow
def test_the_screenshot_is_the_viewport_one_pixel_for_one(world: Browser) -> None:
    seen = opened(
        world, "plain", "<div style='position:absolute;left:100px;top:50px;width:7px;height:9px;background:red'>"
    )
    image = seen.screenshot.load()
    assert image.size == seen.screenshot.size == SIZE
    red = [(x, y) for x in range(90, 120) for y in range(40, 70) if image.getpixel((x, y)) == (255, 0, 0)]
    assert (min(red), max(red), len(red)) == ((100, 50), (106, 58), 63)
    assert (seen.goal, seen.text, seen.is_done, seen.reward) == ("make the title done", "", False, 0.0)


LOG = """
const log = [];
for (const kind of ["mousedown", "mouseup", "click", "dblclick", "contextmenu", "auxclick", "wheel"])
  addEventListener(kind, (e) => { log.push(`${kind}${e.button ?? ""}@${e.clientX},${e.clientY}${kind === "wheel" ?
    `:${e.deltaX},${e.deltaY}` : `x${e.detail}`}`); document.title = log.join(" "); });
for (const kind of ["keydown", "keyup"])
  addEventListener(kind, (e) => {
    log.push(`${kind}:${e.ctrlKey ? "ctrl-" : ""}${e.key}`);
    document.title = log.join(" ");
  });
"""


@slow
@pytest.mark.parametrize(
    ("action", "events"),
    [
        (Action("click", point=(30, 40)), "mousedown0@30,40x1 mouseup0@30,40x1 click0@30,40x1"),
        (
            Action("right_click", point=(30, 40)),
            "mousedown2@30,40x1 contextmenu2@30,40x0 mouseup2@30,40x1 auxclick2@30,40x1",
        ),
        (Action("middle_click", point=(30, 40)), "mousedown1@30,40x1 mouseup1@30,40x1 auxclick1@30,40x1"),
        (
            Action("double_click", point=(30, 40)),
            "mousedown0@30,40x1 mouseup0@30,40x1 click0@30,40x1 mousedown0@30,40x2 mouseup0@30,40x2 click0@30,40x2 "
            "dblclick0@30,40x2",
        ),
        (Action("drag", point=(30, 40), end=(50, 60)), "mousedown0@30,40x1 mouseup0@50,60x1 click0@50,60x1"),
        (Action("scroll", point=(30, 40), direction="right", amount=70), "wheel0@30,40:70,0"),
        (Action("hotkey", keys=("ctrl", "b")), "keydown:ctrl-Control keydown:ctrl-b keyup:ctrl-b keyup:Control"),
        (Action("type", text="a\n"), "keydown:a keyup:a keydown:Enter keyup:Enter"),
    ],
    ids=lambda value: value.kind if isinstance(value, Action) else "",
)
def test_the_page_gets_the_events_of_an_action(world: Browser, action: Action, events: str) -> None:
    opened(world, "log", "<div style='width:2000px;height:100px'></div>", LOG)
    assert world.step(action).text == ""
    assert title(world) == events


@slow
def test_time_passes_only_with_actions_and_begins_at_the_same_moment(world: Browser) -> None:
    script = "setTimeout(() => { document.title = 'done' }, 5000); document.body.textContent = Date.now();"
    first = opened(world, "clock", "", script)
    time.sleep(0.2)
    assert not world.step(Action("wait", amount=4)).is_done
    last = world.step(Action("wait", amount=2))
    assert (last.is_done, last.reward) == (True, 1.0)
    again = world.reset(task("clock"), 5)
    assert again.screenshot == first.screenshot


@slow
def test_randomness_is_that_of_the_targets_seed(world: Browser) -> None:
    script = """document.title = [Math.random(), crypto.getRandomValues(new Uint32Array(2)), crypto.randomUUID()];
        document.body.textContent = document.title"""
    page(world.pages, "random", "", script)
    titles, pictures = [], []
    for target, seed in [({"seed": 1}, 7), ({"seed": 1}, 8), ({"seed": 2}, 7), ({}, 1)]:
        pictures.append(world.reset(Prompt("x", target={"task": "random", **target}), seed).screenshot)
        titles.append(title(world))
    assert titles[0] == titles[1] == titles[3] != titles[2]
    assert pictures[0] == pictures[1] == pictures[3] != pictures[2]


@slow
def test_what_cannot_be_done_is_said_and_changes_nothing(world: Browser) -> None:
    opened(world, "refuse", "<input autofocus>")
    before = world.state_key()
    for action, words in [
        (Action("click", point=(480, 10)), "This cannot be done: (480, 10) is outside of the screen"),
        (Action("hotkey", keys=("foo",)), "there is no key 'foo'"),
        (Action("hotkey", keys=("back",)), "no page to go back to"),
        (Action("open", text="mail"), "There is nothing to open in a page."),
    ]:
        seen = world.step(action)
        assert words in seen.text and not seen.is_done
    assert world.state_key() == before


@slow
def test_an_answer_is_judged_and_ends_the_episode(world: Browser) -> None:
    (world.pages / "ask.html").write_text(
        "<script>window.mmrl = {goal: '6 x 7', validate: (answer) => answer === '42' ? 1 : 0.25}</script>"
    )
    for action, reward in [
        (Action("answer", text="42"), 1.0),
        (Action("answer", text="41"), 0.25),
        (Action("finish", text="42"), 0.25),
    ]:
        world.reset(task("ask"), 0)
        assert world.step(Action("wait")).reward == 0.0  # of a state that is not the last
        last = world.step(action)
        assert (last.is_done, last.reward) == (True, reward)
        after = world.step(Action("click", point=(1, 1)))
        assert (after.is_done, after.reward, after.text) == (True, 0.0, "The task is over.")


@slow
def test_a_page_goes_back_to_the_one_before(world: Browser) -> None:
    page(world.pages, "next", "<p>next")
    opened(world, "start", "<a href='next.html'>on</a>")
    world.step(Action("click", point=(8, 8)))
    assert title(world) == "next"
    assert world.step(Action("hotkey", keys=("back",))).text == ""
    assert title(world) == "start"


@slow
def test_the_clipboard_is_empty_in_a_new_episode_and_part_of_the_state(world: Browser) -> None:
    prompt = page(world.pages, "clipboard", "<input autofocus value='secret'>")
    world.reset(prompt, 0)
    world.step(Action("hotkey", keys=("ctrl", "a")))
    before = world.state_key()
    world.step(Action("hotkey", keys=("ctrl", "c")))
    assert world.state_key() != before
    world.reset(prompt, 0)
    world.step(Action("hotkey", keys=("ctrl", "a")))
    assert world.state_key() == before


@slow
def test_the_state_key_tells_what_the_screenshot_does_not(world: Browser) -> None:
    body = """<input id=field><div id=list style='height:50px;overflow:auto'><p style='height:500px'></p></div>
        <button onclick='Math.random()'>roll</button><button onclick='hidden += 1'>count</button>"""
    script = "let hidden = 0; mmrl.state = () => hidden;"
    prompt = page(world.pages, "state", body, script)
    keys = {}
    for name, action in {
        "nothing": Action("wait"),
        "focus": Action("click", point=(20, 10)),
        "scroll": Action("scroll", point=(20, 50), direction="down", amount=30),
        "roll": Action("click", point=(15, 90)),
        "count": Action("click", point=(60, 90)),
        "move": Action("move", point=(300, 300)),
    }.items():
        world.reset(prompt, 0)
        world.step(action)
        world.step(Action("wait"))
        keys[name] = world.state_key()
    assert len(set(keys.values())) == len(keys)
    world.reset(prompt, 0)
    world.step(Action("wait"))
    world.step(Action("wait"))
    assert world.state_key() == keys["nothing"]
    world.reset(task("state", seed=1), 0)
    assert world.state_key() != keys["nothing"]


@slow
def test_two_worlds_of_one_thread_do_not_touch_each_other(world: Browser) -> None:
    prompt = page(world.pages, "two", "<input autofocus>")
    other = replace(world)
    try:
        first, second = world.reset(prompt, 0), other.reset(prompt, 0)
        assert first.screenshot == second.screenshot and world.state_key() == other.state_key()
        world.step(Action("type", text="a"))
        assert world.state_key() != other.state_key()
    finally:
        other.close()
