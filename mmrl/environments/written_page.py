"""A web page that an agent writes: each action is the whole document, which is opened in headless Chromium."""

from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import Field

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, RunError
from mmrl.core.data import Observation, Prompt
from mmrl.parsing.actions.action import Action

from .base.tab import Tab
from .browser import Browser, Seconds, Side

BLANK = "<!doctype html><title>A blank page</title>"
Check = tuple[str, ...]  # selectors: all but the last are clicked, one after the other; then the last is looked for


@dataclass
class WrittenPage(Checked):
    """A blank page, in whose place an agent puts documents: a `type` action holds the whole HTML text of the next one.

    After Lu et al. 2025, "WebGen-Agent", arXiv 2509.22644, of whose web sites of many files this is the first page
    alone: the document holds its own styles and scripts. The screenshot shows the top of the document in `width` x
    `height` pixels, as `browser` shows a page: without a network, without animations, with a clock that stands still.
    `finish` and `answer` end the episode; what is no document changes nothing, and is told.

    The reward of each step is the share, in [0, 1], of the `checks` in the target of the prompt that the present page
    passes; 0 without checks. A check is a selector of Playwright, such as `nav a` or `text=Contact`, that an element in
    sight must match, or a list of them, of which all but the last are clicked first: `["text=Add", ".basket li"]`.
    A document that hangs or crashes the page passes none, and the page is blank again.

    Raises ConfigError for checks that are none, RunError for a browser that cannot be started again.
    """

    executable: str | None = None  # a Chromium; `null`: Playwright's own, else one that is on PATH
    width: Side = 960  # of the page and its screenshot, in pixels
    height: Side = 720  # of the page and its screenshot, in pixels
    most_characters: Annotated[int, Field(ge=1)] = 200_000  # of a document; a longer one is refused
    step_seconds: Seconds = 20.0  # seconds of a check after which a page counts as hung
    load_seconds: Seconds = 60.0  # seconds to start a browser, and to load a page, after which it counts as hung
    _browser: Browser | None = field(init=False, default=None, repr=False, compare=False)
    _folder: TemporaryDirectory[str] | None = field(init=False, default=None, repr=False, compare=False)
    _task: Prompt = field(init=False, default=Prompt(""), repr=False, compare=False)  # names the page and its seed
    _checks: tuple[Check, ...] = field(init=False, default=(), repr=False, compare=False)
    _last: Observation | None = field(init=False, default=None, repr=False, compare=False)

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Shows a blank page. Raises ConfigError for checks that are no selectors."""
        self._checks = checks_of(task)
        self._task = Prompt("", target={"task": "page", "seed": seed})
        browser = self._opened()
        self._last = self._show(browser, BLANK)
        for check in self._checks:
            for selector in check:
                self._valid(browser, selector)
        return self._last

    def step(self, action: Action) -> Observation:
        """Shows the document of the action, and returns what is seen of it with the share of checks that it passes."""
        last, browser = self._last, self._browser
        if last is None or browser is None:
            raise RunError("environments.written_page: no episode has begun")
        if last.is_done:
            return replace(last, text="The task is over.", reward=0.0)
        if action.kind in ("finish", "answer"):
            self._last = replace(last, text="", is_done=True)
        elif action.kind != "type":
            self._last = replace(last, text="Here you can only type the whole document, or finish.")
        elif len(action.text or "") > self.most_characters:
            self._last = replace(last, text=f"A document may have {self.most_characters} characters.")
        else:
            self._last = self._tried(browser, action.text or "")
        return self._last

    def state_key(self) -> str:
        """Returns a hash of the state of the page; see `browser`."""
        if self._browser is None:
            raise RunError("environments.written_page: no episode has begun")
        return self._browser.state_key()

    def close(self) -> None:
        """Kills the browser, from any thread, and removes the document."""
        browser, folder, self._browser, self._folder = self._browser, self._folder, None, None
        if browser is not None:
            browser.close()
        if folder is not None:
            folder.cleanup()

    def _opened(self) -> Browser:
        if self._browser is None:
            self._folder = TemporaryDirectory(prefix="mmrl-page-")
            self._browser = Browser(
                folder=self._folder.name,
                executable=self.executable,
                width=self.width,
                height=self.height,
                step_seconds=self.step_seconds,
                load_seconds=self.load_seconds,
            )
        return self._browser

    def _show(self, browser: Browser, document: str) -> Observation:
        (browser.pages / "page.html").write_text(document, "utf-8")
        return replace(browser.reset(self._task, 0), goal=None)  # no page that an agent wrote sets its goal

    def _tried(self, browser: Browser, document: str) -> Observation:
        """Returns what is seen of a document; of one that hangs or crashes the page, a blank page."""
        try:
            seen = self._show(browser, document)
            passed = [self._passes(browser, check) for check in self._checks]
        except RunError as error:
            return replace(self._show(browser, BLANK), text=f"The page could not be shown: {error}")
        return replace(seen, reward=sum(passed) / len(passed) if passed else 0.0)

    def _passes(self, browser: Browser, check: Check) -> bool:
        """Returns whether the page passes a check, and leaves the page as it was opened."""
        holds = browser.within(lambda tab: _holds(tab, check), f"the check {' > '.join(check)}")
        if len(check) > 1:
            browser.reset(self._task, 0)
        return holds

    def _valid(self, browser: Browser, selector: str) -> None:
        try:
            browser.within(lambda tab: tab.page.locator(selector).count(), f"the selector {selector!r}")
        except RunError as error:
            raise ConfigError(f"environments.written_page: a check has no selector in {selector!r}: {error}") from error


async def _holds(tab: Tab, check: Check) -> bool:
    """Returns whether the last selector finds an element in sight after clicks on the others, in order."""
    *clicks, sought = check
    for selector in clicks:
        element = tab.page.locator(selector).first
        if not await element.is_visible():
            return False
        await element.dispatch_event("click")
        await tab.act(Action("wait"))
    return bool(await tab.page.locator(sought).first.is_visible())


def checks_of(task: Prompt) -> tuple[Check, ...]:
    """Returns the checks of a prompt's target; none where it has no `checks`.

    Raises ConfigError for what is no list of selectors, and of lists of them.
    """
    given: Any = task.target.get("checks", ())
    items = given if isinstance(given, list | tuple) else [()]
    checks = [tuple(one) if isinstance(one, list | tuple) else (one,) for one in items]
    if not all(check and all(isinstance(one, str) and one.strip() for one in check) for check in checks):
        raise ConfigError(
            "environments.written_page: the checks of a target are a list of selectors, or of lists of them, got "
            f"{given!r:.80}"
        )
    return tuple(checks)
