"""The web page of an episode, in a browser context of its own: without animations, and without a network."""

import asyncio
import json
import mimetypes
import os
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from mmrl.core.contracts import RunError
from mmrl.parsing.actions.action import Action

from .page_actions import Hands

ORIGIN = "https://pages.test"  # answered from the folder of pages; no such host exists (RFC 6761)
START = 1_767_225_600  # seconds: every episode begins on 1 January 2026, 00:00 UTC
SETTLING = 0.1  # seconds of the page's clock that pass after each action
MOST_NOTICES = 5  # the most notices after one action
ROUNDS = 20  # the most rounds of waiting for what a page has requested

Dialogs = Literal["accept", "dismiss"]


def read_inside(folder: Path, path: str) -> bytes | None:
    """Returns the file at a page's `path` inside `folder`, an absolute path without links; None where there is none.

    A page may request any path: outside of the folder, with a NUL, longer than a name can be, links in a circle.
    """
    try:
        file = Path(os.path.realpath(folder / path.lstrip("/")))  # Path.resolve raises for a circle, as of some Pythons
        return file.read_bytes() if file.is_relative_to(folder) and file.is_file() else None
    except (OSError, ValueError):
        return None


class Tab:
    """A page of `size` pixels with a fixed clock, random state, place and language.

    `notices` are sentences for the agent about the events since they were last read. All methods run in the event loop
    of the browser and raise Playwright's errors.
    """

    def __init__(self, folder: Path, size: tuple[int, int], *, scroll_step: float, dialogs: Dialogs) -> None:
        self.folder, self.size, self.scroll_step, self.dialogs = folder.resolve(), size, scroll_step, dialogs
        self.notices: list[str] = []
        self._open_requests = 0
        self._expected = {"page": 0, "window": 0}  # what the page has requested and not received yet
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, browser: Any, name: str, seed: int, seconds: float) -> None:
        """Opens the page `name`.html of the folder; Playwright's own waits end after `seconds`."""
        from playwright.async_api import Error

        self.context = await browser.new_context(
            viewport={"width": self.size[0], "height": self.size[1]},
            device_scale_factor=1,
            locale="en-US",
            timezone_id="UTC",
            color_scheme="light",
            reduced_motion="reduce",
            service_workers="block",
            accept_downloads=False,
            permissions=["clipboard-read", "clipboard-write"],
        )
        self.context.set_default_timeout(1000 * seconds)
        await self.context.route("**/*", self._answer)
        await self.context.route_web_socket("**/*", self._refuse_socket)
        steady = files("mmrl.environments.base").joinpath("steady.js").read_text("utf-8")
        await self.context.add_init_script(f"({steady.strip().rstrip(';')})({seed % 2**32})")
        await self.context.clock.install(time=START - 1)
        await self.context.clock.pause_at(START)
        self.page = await self.context.new_page()
        self.hands = Hands(self.page, self.size, self.scroll_step, Error)
        self.context.on("page", lambda page: self._soon(self._close_popup(page)))
        await self._follow_ways_out()
        self.page.on("dialog", lambda dialog: self._soon(self._end_dialog(dialog)))
        self.page.on("download", lambda _: self.notices.append("A download was refused."))
        self.page.on("filechooser", lambda _: self.notices.append("The page asked for a file; there is none."))
        for event, change in (("request", 1), ("requestfinished", -1), ("requestfailed", -1)):
            self.page.on(event, self._counter(change))
        await self.page.goto(f"{ORIGIN}/{name}.html", wait_until="load")
        await self.page.evaluate("navigator.clipboard.writeText('')")  # contexts share the browser's
        await self._settle()

    async def act(self, action: Action) -> None:
        """Does the action and waits until the page is at rest; raises Refusal where the action is impossible."""
        await self.hands.do(action)
        await self._settle()

    async def look(self) -> bytes:
        """Returns the screenshot as PNG."""
        picture: bytes = await self.page.screenshot(animations="disabled", caret="hide", scale="css")
        return picture

    async def ask(self, question: str, *arguments: object) -> Any:
        """Returns the result of a function of `steady.js` in the page; repeats the call where the page changed."""
        from playwright.async_api import Error

        call = f"(given) => window.__environment.{question}(...given)"
        for _ in range(ROUNDS):
            try:
                return await self.page.evaluate(call, list(arguments))
            except Error as error:
                if "Execution context was destroyed" not in str(error):
                    raise
                await self.page.wait_for_load_state("load")
        raise RunError("the page goes from one address to the next without an end")

    async def state(self) -> str:
        """Returns all that decides the future, as far as the page shows or reports it."""
        clipboard = await self.page.evaluate("navigator.clipboard.readText().catch(() => null)")
        return json.dumps([await self.ask("state"), clipboard, self.hands.pointer])

    def read_notices(self) -> str:
        """Returns the events since the last call, in sentences."""
        notices, self.notices = self.notices, []
        more = [f"And {len(notices) - MOST_NOTICES} times more."] if len(notices) > MOST_NOTICES else []
        return " ".join([*notices[:MOST_NOTICES], *more])

    async def close(self) -> None:
        """Closes the page and its context."""
        await self.context.close()

    async def _settle(self) -> None:
        """Lets time pass on the page's clock until no request is open, then waits for two frames."""
        await self.ask("frames")  # a wheel takes effect in the next frame
        for _ in range(ROUNDS):
            await self.page.wait_for_load_state("load")
            await self.hands.run_clock(SETTLING)
            if not self._open_requests and not self._tasks and not any(self._expected.values()):
                break
            await asyncio.sleep(0.05)
        await self.ask("frames")

    async def _follow_ways_out(self) -> None:
        """Watches for a navigation or a new window, and learns of it before the click that caused it is over.

        Playwright's own events come too late for an observation that is always the same.
        """
        session = await self.context.new_cdp_session(self.page)
        await session.send("Page.enable")

        def expect(what: str, count: int) -> Callable[[Any], None]:
            def note(_: Any) -> None:
                self._expected[what] = count

            return note

        session.on("Page.frameRequestedNavigation", expect("page", 1))
        session.on("Page.frameStoppedLoading", expect("page", 0))
        session.on("Page.windowOpen", expect("window", 1))

    def _counter(self, change: int) -> Callable[[Any], None]:
        def count(_: Any) -> None:
            self._open_requests += change

        return count

    def _soon(self, work: Any) -> None:
        """Starts the answer to an event; the next observation waits for the answer."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, route: Any) -> None:
        """Answers a request with a file of the folder; other requests are refused, and the page stays."""
        from playwright.async_api import Error

        request = route.request
        try:
            is_popup = request.frame.page != self.page
        except Error:  # the frame of a new window is not there yet
            is_popup = True
        if is_popup:
            await self._do(route.abort())
            return
        address = urlsplit(request.url)
        path, is_own = unquote(address.path), f"{address.scheme}://{address.netloc}" == ORIGIN
        is_page = request.is_navigation_request() and request.frame == self.page.main_frame
        if is_own and (content := read_inside(self.folder, path)) is not None:
            kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
            await self._do(route.fulfill(body=content, content_type=f"{kind}; charset=utf-8"))
            return
        if is_page:
            self.notices.append(f"The page wanted to go to {request.url[:200]}, which cannot be reached.")
        await self._do(route.abort("aborted" if is_page else "internetdisconnected"))

    async def _do(self, reply: Any) -> None:
        """Sends a reply, and ignores the error of a page that is gone."""
        from playwright.async_api import Error

        with suppress(Error):
            await reply

    async def _refuse_socket(self, socket: Any) -> None:
        await socket.close(reason="there is no network")

    async def _close_popup(self, page: Any) -> None:
        self.notices.append("The page opened another window, which was closed.")
        await self._do(page.close())
        self._expected["window"] = 0

    async def _end_dialog(self, dialog: Any) -> None:
        done = "accepted" if self.dialogs == "accept" or dialog.type == "alert" else "dismissed"
        if dialog.type == "beforeunload":  # the agent's own action leaves the page
            await self._do(dialog.accept())
            return
        self.notices.append(f'The page showed the {dialog.type} "{dialog.message[:500]}", which was {done}.')
        await self._do(dialog.accept() if done == "accepted" else dialog.dismiss())
