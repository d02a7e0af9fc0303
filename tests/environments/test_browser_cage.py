"""The isolation of a page: no way out of Chromium reaches a socket, and its sandbox is on where possible."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mmrl.environments.base.isolation import NotPermitted, write_launcher
from mmrl.environments.base.tab import read_inside
from mmrl.environments.browser import Browser
from mmrl.parsing.actions.action import Action
from tests.environments.listeners import Listeners
from tests.web_pages import PATIENT, opened, slow, task, title

SECONDS = 1.0  # real ones: Chromium's processes do not follow the page's clock
HERE = Path(__file__).parent


def try_all_ways_out(folder: Path, port: int) -> None:
    """Opens a page that tries every way out, to a port of this machine and to names."""
    (folder / "ways.html").write_text((HERE / "ways_out.html").read_text("utf-8").replace("PORT", str(port)), "utf-8")
    (folder / "inner.html").write_text(f"<img src='http://127.0.0.1:{port}/inner'>", "utf-8")
    (folder / "worker.js").write_text(f"fetch('http://127.0.0.1:{port}/worker', {{mode: 'no-cors'}})", "utf-8")
    world = Browser(folder=str(folder), **PATIENT)
    try:
        world.reset(task("ways"), 0)
        world.step(Action("wait", amount=2))
        time.sleep(SECONDS)
        assert title(world).endswith(" ways tried")
    finally:
        world.close()


def ran_in(options: list[str], first: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python script in namespaces of its own, after a line of the shell; skips where these are refused."""
    enter = ["unshare", "--user", *options]
    if shutil.which("unshare") is None or subprocess.run([*enter, "true"], capture_output=True).returncode:
        pytest.skip(f"{' '.join(enter)} is not permitted here")
    command = [*enter, "sh", "-c", first, "-", sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=HERE.parents[1], timeout=250)


def launcher_of(program: str, folder: Path) -> Path:
    """Returns a launcher of the program; skips where namespaces are refused."""
    try:
        return write_launcher(program, folder)
    except NotPermitted as error:
        pytest.skip(f"namespaces are not permitted here: {error}")


def refuse(program: str, folder: Path) -> Path:
    raise NotPermitted("as in a container")


@slow
def test_no_way_out_of_a_page_reaches_a_socket(tmp_path: Path) -> None:
    with Listeners() as control:
        socket.create_connection(("127.0.0.1", control.port)).close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
            sending.sendto(b"hello", ("127.0.0.1", control.port))
        while len(control.heard) < 2:  # the timeout of the test ends it
            time.sleep(0.01)
    assert sorted(control.heard) == ["TCP", "UDP b'hello'"]
    with Listeners() as listeners:
        try_all_ways_out(tmp_path, listeners.port)
    assert listeners.heard == []


def test_a_program_in_namespaces_has_no_network_and_no_right_of_root(tmp_path: Path) -> None:
    launcher = launcher_of("/bin/sh", tmp_path)
    show = 'sed 1d /proc/net/route; grep CapEff /proc/self/status; id -u; test -O "$1" && echo "own files"'
    done = subprocess.run([launcher, "-c", show, "-", tmp_path], capture_output=True, text=True, check=True)
    user = os.geteuid() or 65534
    assert done.stdout.splitlines() == [f"CapEff:\t{'0' * 16}", str(user), "own files"]  # and no route


def test_a_program_that_cannot_run_in_namespaces_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher_of("/bin/sh", tmp_path)
    with pytest.raises(NotPermitted, match="/bin/none could not be executed"):
        write_launcher("/bin/none", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotPermitted, match=r"No such file.*unshare"):
        write_launcher("/bin/another", tmp_path)


SETTINGS_ALONE = """
import contextlib, fcntl, socket, struct, sys
from pathlib import Path
from mmrl.environments.base import chromium
from tests.environments import test_browser_cage as cage
from tests.environments.listeners import Listeners

with socket.socket() as any_socket:  # loopback, which is down in a new namespace
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))
chromium.write_launcher = cage.refuse
chromium.ARGUMENTS += ("--allow-loopback-in-peer-connection",)  # WebRTC sends by no other way here
with Listeners(53) as resolver, Listeners() as listeners:
    with contextlib.suppress(socket.gaierror):  # nobody answers
        socket.getaddrinfo("control.example", 80)
    assert any("control" in heard for heard in resolver.heard), resolver.heard
    resolver.heard.clear()
    cage.try_all_ways_out(Path(sys.argv[1]), listeners.port)
    print(listeners.heard, resolver.heard)
"""


@slow
def test_without_the_kernel_too_no_socket_is_reached_and_no_name_asked_for(tmp_path: Path) -> None:
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    mount = f'mount --bind {tmp_path}/resolv.conf /etc/resolv.conf && exec "$@"'
    done = ran_in(["--map-root-user", "--net", "--mount"], mount, SETTINGS_ALONE, str(tmp_path))
    assert done.stdout == "[] []\n", done.stderr


def status(process: int) -> dict[str, str]:
    """Returns the kernel's status of a process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@slow
def test_the_sandbox_is_on_and_the_kernel_closes_the_network(world: Browser, tmp_path: Path) -> None:
    launcher_of("/bin/sh", tmp_path)
    opened(world, "inside", "<p>inside")
    assert world._chromium is not None
    browser = world._chromium.process
    assert browser is not None

    async def processes() -> list[dict[str, Any]]:
        session = await world._browser.new_browser_cdp_session()
        found: list[dict[str, Any]] = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
        return found

    renderers = [one["id"] for one in world._run(processes(), 20, "asking") if one["type"] == "renderer"]
    assert renderers
    assert {status(one)["Seccomp"] for one in renderers} == {"2"}  # system calls are filtered
    assert {len(status(one)["NSpid"].split()) > 1 for one in renderers} == {True}  # other processes are not seen
    assert set(status(browser)["CapEff"]) == {"0"}  # no right of root
    assert os.readlink(f"/proc/{browser}/ns/net") != os.readlink("/proc/self/ns/net")
    assert "--no-sandbox" not in Path(f"/proc/{browser}/cmdline").read_text().split("\0")


OPENED = """
import logging
from mmrl.environments.browser import Browser
from tests.web_pages import PATIENT, task

logging.basicConfig(level="WARNING", format="%(message)s")
for _ in range(2):
    world = Browser(**PATIENT)
    assert world.reset(task("form"), 0).goal
    world.close()
"""


@slow
def test_where_namespaces_are_not_permitted_the_browser_runs_and_the_log_says_what_is_off() -> None:
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    done = ran_in(["--map-root-user"], forbid, OPENED)
    assert done.returncode == 0, done.stderr
    network, sandbox = done.stderr.splitlines()  # once for two browsers
    assert "pages are kept from the network by Chromium's settings, and not by the kernel: unshare: " in network
    assert "Chromium's sandbox is off: root needs user namespaces for it (unshare: " in sandbox


STRANGE = [
    "/\0",
    "/" + "a" * 300,
    "/circle",
    "/circle/page.html",
    "/" + "a/" * 3000,
    "/..",
    "/../outside.txt",
    "/out",
    "/folder",
    "/none",
]


def test_a_name_that_is_no_file_of_the_folder_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    (folder / "folder").mkdir(parents=True)
    (folder / "page.html").write_text("page")
    (folder / "circle").symlink_to("circle")
    (tmp_path / "outside.txt").write_text("outside")
    (folder / "out").symlink_to(tmp_path / "outside.txt")
    assert read_inside(folder, "/page.html") == read_inside(folder, "/folder/../page.html") == b"page"
    assert [read_inside(folder, name) for name in STRANGE] == [None] * len(STRANGE)


@slow
def test_a_request_for_a_name_that_no_file_can_have_is_answered(world: Browser) -> None:
    (world.pages / "circle").symlink_to("circle")
    script = """
        const names = ["/%00", "/" + "a".repeat(300), "/circle", "/circle/x", "/folder/%00/x", "near.js"], found = [];
        for (const name of names) fetch(name).then(() => name, () => "no").then((said) => {
          found.push(said); document.title = found.sort().join(" "); });"""
    (world.pages / "near.js").write_text("")
    opened(world, "strange", "", script)
    world.step(Action("wait"))
    assert title(world) == "near.js no no no no no"
