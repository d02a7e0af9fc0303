"""Pages that misbehave: a notice for what is refused; a page that hangs or crashes ends its own episode alone."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.contracts import RunError
from mmrl.environments.browser import Browser
from mmrl.parsing.actions.action import Action
from tests.web_pages import PATIENT, opened, page, slow, task, title


def is_running(process: int) -> bool:
    """Returns whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(process: int) -> None:
    while is_running(process):  # the timeout of the test ends it
        time.sleep(0.05)


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
def test_a_process_that_is_killed_leaves_no_browser_behind(tmp_path: Path) -> None:
    script = """
import time
from mmrl.core.data import Prompt
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
