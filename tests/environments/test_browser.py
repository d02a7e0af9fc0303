"""Web pages in a real Chromium: what an agent sees and does there, and what becomes of pages that misbehave."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmrl import plugins
from mmrl.actions import Action
from mmrl.contracts import ConfigError, Environment, RunError
from mmrl.data import Observation, Prompt
from mmrl.environments._chromium import find_executable
from mmrl.environments.browser import Browser
from tests.web_pages import SIZE, needs_browser, page, task

PATIENT: dict[str, Any] = {"step_seconds": 60, "load_seconds": 240}  # with a machine that does much else
slow_browser = [pytest.mark.slow, needs_browser, pytest.mark.timeout(300)]  # starts a Chromium


def slow(test: Any) -> Any:
    for mark in slow_browser:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for the pages of these tests."""
    browser = Browser(folder=str(tmp_path_factory.mktemp("pages")), **PATIENT)
    yield browser
    browser.close()


def opened(world: Browser, name: str, body: str, script: str = "") -> Observation:
    return world.reset(page(world.pages, name, body, script), 0)


def title(world: Browser) -> str:
    assert world._chromium is not None and world._tab is not None
    return str(world._chromium.run(world._tab.page.title(), 20, "the title"))


def is_running(process: int) -> bool:
    """Whether a process exists and is more than a name that its parent has not yet collected."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(process: int) -> None:
    while is_running(process):  # the timeout of the test ends it
        time.sleep(0.05)


# --- without a browser


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


# --- with one


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
@pytest.mark.parametrize(("dialogs", "kept"), [("accept", "true null"), ("dismiss", "false null")])
def test_dialogs_are_answered_and_told(world: Browser, dialogs: Any, kept: str) -> None:
    page(
        world.pages,
        "ask_me",
        "<button onclick='ask()'>x</button>",
        """
        function ask() { alert("Hi"); document.title = `${confirm("Sure?")} ${prompt("Name?") || null}`; }""",
    )
    other = replace(world, dialogs=dialogs)
    try:
        other.reset(task("ask_me"), 0)
        done = "accepted" if dialogs == "accept" else "dismissed"
        assert other.step(Action("click", point=(5, 5))).text == " ".join(
            f'The page showed the {kind} "{words}", which was {end}.'
            for kind, words, end in [("alert", "Hi", "accepted"), ("confirm", "Sure?", done), ("prompt", "Name?", done)]
        )
        assert title(other) == kept
    finally:
        other.close()


@slow
def test_windows_and_ways_out_are_refused_and_told(world: Browser) -> None:
    opened(
        world,
        "out",
        """<a href='http://example.com/x'>away</a><br><a href='file:///etc/passwd'>file</a><br>
        <a href='out.html' target='_blank'>window</a><br><a href='second.html'>on</a>""",
    )
    page(world.pages, "second", "<p>second page", "document.title = 'done'")
    first = "The page wanted to go to http://example.com/x, which cannot be reached."
    assert world.step(Action("click", point=(10, 8))).text == first
    world.step(Action("click", point=(10, 26)))
    assert title(world) == "out"
    assert world.step(Action("click", point=(10, 44))).text == "The page opened another window, which was closed."
    on = world.step(Action("click", point=(10, 62)))
    assert on.is_done and title(world) == "done"


@slow
def test_a_page_whose_windows_close_themselves_goes_on_and_it_cannot_close_itself(world: Browser) -> None:
    opened(
        world,
        "closing",
        "<button onclick='both()'>x</button>",
        """function both() { window.close(); open("about:blank"); open("about:blank").close(); count += 1;
        if (count == 3) setTimeout(() => { document.title = "done" }, 50) } let count = 0;""",
    )
    for number in range(3):
        seen = world.step(Action("click", point=(15, 15)))
        assert "The page opened another window, which was closed." in seen.text
        assert seen.is_done == (number == 2)


@slow
def test_a_page_goes_back_to_the_one_before(world: Browser) -> None:
    page(world.pages, "next", "<p>next")
    opened(world, "start", "<a href='next.html'>on</a>")
    world.step(Action("click", point=(8, 8)))
    assert title(world) == "next"
    assert world.step(Action("hotkey", keys=("back",))).text == ""
    assert title(world) == "start"


@slow
def test_nothing_is_loaded_from_elsewhere(world: Browser) -> None:
    (world.pages.parent / "secret.txt").write_text("secret")
    (world.pages / "near.txt").write_text("near")
    opened(
        world,
        "network",
        "",
        """
        const found = [], far = ["http://127.0.0.1:9/", "https://example.com/", "../secret.txt", "/%2e%2e/secret.txt"];
        const note = (text) => { found.push(text); document.title = found.sort().join(" "); };
        for (const address of [...far, "near.txt"])
          fetch(address).then((r) => r.text()).then(note, () => note("no"));
        const socket = new WebSocket("ws://127.0.0.1:9/");
        socket.onclose = () => note("closed");""",
    )
    world.step(Action("wait"))
    assert title(world) == "closed near no no no no"


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
@pytest.mark.parametrize("script", ["onclick = () => { for (;;); }", "onclick = () => { for (;;) alert('again'); }"])
def test_a_page_that_hangs_raises_and_the_next_episode_has_a_new_browser(tmp_path: Path, script: str) -> None:
    world = Browser(folder=str(tmp_path), step_seconds=8, load_seconds=240)
    try:
        opened(world, "hang", "<p>hang", script)
        process = world._chromium.process if world._chromium else None
        assert process is not None and is_running(process)
        with pytest.raises(RunError, match="the action click on the page 'hang': no answer for 8 seconds"):
            world.step(Action("click", point=(5, 5)))
        wait_until_gone(process)
        with pytest.raises(RunError, match="no episode has begun"):
            world.step(Action("wait"))
        assert opened(world, "fine", "<p>fine").goal == "make the title done"
        assert not world.step(Action("wait")).is_done
    finally:
        world.close()


@slow
def test_a_page_that_hangs_while_it_loads_raises(tmp_path: Path) -> None:
    world = Browser(folder=str(tmp_path), **PATIENT)
    try:
        world.reset(page(tmp_path, "fine", ""), 0)
        world.load_seconds = 8  # enough for a page, and not for a browser on a busy machine
        with pytest.raises(RunError, match=r"opening the page 'loop': .*(8 seconds|8000ms)"):
            opened(world, "loop", "", "for (;;);")
    finally:
        world.close()


@slow
def test_a_page_that_crashes_raises_and_the_next_episode_goes_on(tmp_path: Path) -> None:
    world = Browser(folder=str(tmp_path), **PATIENT)
    try:
        opened(world, "crash", "<p>x")
        assert world._chromium is not None and world._tab is not None
        with pytest.raises(RunError, match="crash"):
            world._run(world._tab.page.goto("chrome://crash"), 20, "going to chrome://crash")
        assert opened(world, "fine", "<p>fine").text == ""
    finally:
        world.close()


@slow
@pytest.mark.parametrize("judge", ["'yes'", "NaN", "2", "(() => { throw new Error('broken judge') })()"])
def test_a_judge_that_gives_no_reward_raises(world: Browser, judge: str) -> None:
    (world.pages / "judge.html").write_text(f"<script>window.mmrl = {{goal: 'x', validate: () => {judge}}}</script>")
    world.reset(task("judge"), 0)
    with pytest.raises(RunError, match="judge"):
        world.step(Action("wait"))


@slow
def test_another_thread_closes_a_world_that_waits_for_a_page(tmp_path: Path) -> None:
    world = Browser(folder=str(tmp_path), step_seconds=250, load_seconds=240)
    opened(world, "hang", "<p>hang", "onclick = () => { for (;;); }")
    assert world._chromium is not None
    process, raised = world._chromium.process, []

    def act() -> None:
        try:
            world.step(Action("click", point=(5, 5)))
        except RunError as error:
            raised.append(str(error))

    agent = threading.Thread(target=act)
    agent.start()
    time.sleep(1)  # it waits by now, or will be told at once
    world.close()
    agent.join()
    assert len(raised) == 1 and "hang" in raised[0]
    assert process is not None
    wait_until_gone(process)


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


@slow
def test_a_process_that_is_killed_leaves_no_browser_behind(tmp_path: Path) -> None:
    script = """
import time
from mmrl.data import Prompt
from mmrl.environments.browser import Browser
browser = Browser(load_seconds=240)
browser.reset(Prompt("x", target={"task": "form", "seed": 0}), 0)
print(browser._chromium.process, flush=True)
time.sleep(600)
"""
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert child.stdout is not None
    process = int(child.stdout.readline())
    assert is_running(process)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    wait_until_gone(process)
