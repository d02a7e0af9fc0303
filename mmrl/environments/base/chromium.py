"""A Chromium that Playwright starts, whose calls have a time limit, and which is killed when it does not answer."""

import asyncio
import logging
import os
import shutil
import signal
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from mmrl.core.contracts import ConfigError, RunError

from .isolation import NotPermitted, write_launcher

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

NAMES = ("chromium", "chromium-browser", "google-chrome")  # of the programs to look for on PATH
ARGUMENTS = (
    "--disable-smooth-scrolling",  # a scroll is over in the next frame
    "--font-render-hinting=none",
    "--disable-lcd-text",
    "--disable-gpu",
    "--disable-partial-raster",  # else rounded corners differ by one, as the changes fell into one frame or two
    # The network is closed three times: here for all names, TCP and UDP; in `tab` for what pages load; and by the
    # kernel, where `isolation` can. A Chromium ignores switches that it does not know.
    "--host-resolver-rules=MAP * ^NOTFOUND",
    "--proxy-server=socks5://nowhere.invalid:1",
    "--proxy-bypass-list=<-loopback>",  # without it, loopback needs no proxy
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # as the headless shell, Playwright's own, calls it
)
SECONDS_TO_CLOSE = 5.0


def find_executable(wanted: str | None, own: Path) -> str:
    """Returns the program to start: `wanted`, else Playwright's `own`, else a Chromium on PATH.

    Raises ConfigError where there is none, with how to install one.
    """
    if wanted is not None:
        if (program := shutil.which(wanted)) is None:
            raise ConfigError(f"environments.browser.executable: {wanted!r} is no program on this machine")
        return program
    if own.is_file():
        return str(own)
    for name in NAMES:
        if (program := shutil.which(name)) is not None:
            return program
    raise ConfigError(
        "the environment `browser` found no Chromium: run `playwright install chromium`, or install the package "
        "`chromium` of the system (Debian: apt-get install chromium), or give its path as `executable`"
    )


class Chromium:
    """A browser, and the thread in which Playwright's event loop runs.

    The thread lets a call from any other thread have a time limit, one thread use several browsers, and `close` be
    called while another thread waits for a page that hangs.

    Raises ConfigError without Playwright.
    """

    def __init__(self) -> None:
        try:
            import playwright.async_api
        except ModuleNotFoundError as error:
            raise ConfigError(
                "the environment `browser` needs Playwright: pip install 'mmrl[browser]', and a Chromium "
                "(`playwright install chromium`, or the package `chromium` of the system)"
            ) from error
        self._api = playwright.async_api
        self._driver: Any = None
        self._browser: Any = None
        self._process: int | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chromium", daemon=True)
        self._thread.start()

    async def start(self, executable: str | None, *, is_headless: bool, seconds: float) -> Any:
        """Returns the browser, started at the first call; raises ConfigError where there is no program to start."""
        if self._browser is not None:
            return self._browser
        self._driver = await self._api.async_playwright().start()
        program = find_executable(executable, Path(self._driver.chromium.executable_path))
        browser = await self._launch(program, is_headless=is_headless, seconds=seconds)
        session = await browser.new_browser_cdp_session()
        processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
        self._process = next(process["id"] for process in processes if process["type"] == "browser")
        self._browser = browser
        return browser

    async def _launch(self, program: str, *, is_headless: bool, seconds: float) -> Any:
        """Starts a browser, in namespaces and with its sandbox where the kernel permits them; logs what is off."""
        why_not = "" if is_headless else "a window needs the network of this machine"
        with TemporaryDirectory() as folder:  # Chromium has read the launcher when it answers
            executable = program
            try:
                if is_headless:
                    executable = str(write_launcher(program, Path(folder)))
            except NotPermitted as error:
                why_not = str(error)
            if why_not:
                _warn_once(f"pages are kept from the network by Chromium's settings, and not by the kernel: {why_not}")
            try:
                return await self._launch_once(executable, is_headless, seconds, has_sandbox=True)
            except self._api.Error as error:
                if "sandboxing failed" not in str(error):
                    raise
            who = "root" if os.geteuid() == 0 else "this user"
            _warn_once(f"Chromium's sandbox is off: {who} needs user namespaces for it ({why_not or 'it made none'})")
            return await self._launch_once(executable, is_headless, seconds, has_sandbox=False)

    async def _launch_once(self, executable: str, is_headless: bool, seconds: float, *, has_sandbox: bool) -> Any:
        return await self._driver.chromium.launch(
            executable_path=executable,
            headless=is_headless,
            chromium_sandbox=has_sandbox,
            args=list(ARGUMENTS),
            handle_sigint=False,  # an interrupted run ends it by `close`, or by ending itself
            handle_sigterm=False,
            handle_sighup=False,
            timeout=1000 * seconds,
        )

    @property
    def process(self) -> int | None:
        """The id of the browser's process; None while no browser runs."""
        return self._process

    def run(self, work: Coroutine[Any, Any, Answer], seconds: float, what: str) -> Answer:
        """Returns the result of the coroutine `work`, which `what` names in errors.

        Raises RunError where it takes longer than `seconds`, or the page or the browser is gone.
        """
        with self._lock:  # `close` cancels work that began before it
            if self._is_closed:
                work.close()
                raise RunError(f"{what}: the browser is closed")
            waiting = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), self._loop)
        try:
            return waiting.result()
        except TimeoutError as error:
            raise RunError(f"{what}: no answer for {seconds:g} seconds; the page or the browser hangs") from error
        except CancelledError as error:
            raise RunError(f"{what}: the browser was closed meanwhile") from error
        except self._api.Error as error:
            raise RunError(f"{what}: {_first_line(error)}") from error

    def kill(self) -> None:
        """Ends the browser and all its processes at once; calls that wait for the browser then raise."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            group = os.getpgid(process)
            if group == os.getpgrp():  # Chromium has no process group of its own
                os.kill(process, signal.SIGKILL)
            else:
                os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return

    def close(self) -> None:
        """Kills the browser, ends Playwright and the thread; from any thread, and again without an effect."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self.kill()
        ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        ending.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        """Stops Playwright, and cancels the tasks that still wait."""
        if self._driver is not None:
            with suppress(TimeoutError, self._api.Error):  # it ends with this process at the latest
                await asyncio.wait_for(self._driver.stop(), SECONDS_TO_CLOSE)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


@cache
def _warn_once(words: str) -> None:
    """Logs a warning at its first call in a process: each copy of a world starts a browser."""
    log.warning("environments.browser: %s", words)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
