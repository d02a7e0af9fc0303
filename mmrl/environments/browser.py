"""Web pages in headless Chromium as tasks of an agent: files of a folder, judged by the page itself."""

import hashlib
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, RunError
from mmrl.core.data import Observation, Prompt
from mmrl.labs.pages import world
from mmrl.media.pictures import StoredPicture
from mmrl.parsing.actions.action import Action

from .base.chromium import Chromium
from .base.page_actions import Refusal
from .base.tab import Dialogs, Tab

Answer = TypeVar("Answer")
Side = Annotated[int, Field(ge=64, le=4096)]
Seconds = Annotated[float, Field(gt=0)]
REFUSED = {"open": "There is nothing to open in a page."}


@dataclass
class Browser(Checked):
    """A page of `folder` for each episode, named by the `target` of a prompt: `{"task": "form", "seed": 7}`.

    The screenshot shows the page in `width` x `height` pixels, one for one. The same task, seed and actions give the
    same observations: the page's clock stands still between actions, `Math.random` and `crypto` use the target's seed
    (the seed of `reset` where the target has none), nothing is animated, and no network can be reached. Pixels depend
    on the Chromium and the fonts of the machine.

    A page defines its task in `window.mmrl`: `goal` (text), `validate(answer)` (a reward in [0, 1]; 1 ends the
    episode), and may have `oracle()` (the next action, as an object with the fields of Action) and `state()` (what
    decides the future and is not in the document). An answer or a finish ends the episode, with the reward that
    `validate` then returns.

    A page that hangs or crashes raises RunError and ends the browser; the next `reset` starts another browser.
    """

    folder: str | None = None  # the folder of the pages; `null`: the tasks of `lab:pages`
    executable: str | None = None  # a Chromium; `null`: Playwright's own, else one that is on PATH
    width: Side = 480  # of the page and its screenshot, in pixels
    height: Side = 360  # of the page and its screenshot, in pixels
    headless: bool = True  # `false` opens a window, to look on
    dialogs: Dialogs = "accept"  # the reply to `confirm` and `prompt` of a page; an `alert` is always accepted
    scroll_step: Annotated[float, Field(gt=0)] = 200.0  # pixels of a scroll without an amount
    step_seconds: Seconds = 20.0  # seconds of an action after which a page counts as hung
    # Seconds to start a browser, and to load a page; the `step_seconds` of the modality bounds them too.
    load_seconds: Seconds = 60.0
    _chromium: Chromium | None = field(init=False, default=None, repr=False, compare=False)
    _browser: Any = field(init=False, default=None, repr=False, compare=False)
    _tab: Tab | None = field(init=False, default=None, repr=False, compare=False)
    _task: tuple[str, int] = field(init=False, default=("", 0), repr=False, compare=False)
    _last: Observation | None = field(init=False, default=None, repr=False, compare=False)  # of an episode that is over

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folder is not None and not Path(self.folder).is_dir():
            raise ConfigError(f"environments.browser.folder: {self.folder!r} is no folder")

    @property
    def pages(self) -> Path:
        """The folder of the pages."""
        return world.FOLDER if self.folder is None else Path(self.folder)

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Opens the task's page anew, and returns its first observation with the page's own goal.

        Raises ConfigError for a target that names no page, RunError where the page does not load.
        """
        self._task = self._named(task, seed)
        if self._chromium is None:
            self._chromium = Chromium()
        self._last = None
        self._start()
        return self._run(self._open(), self.load_seconds, f"opening the page {self._task[0]!r}")

    def step(self, action: Action) -> Observation:
        """Does the action and returns the next observation.

        Raises RunError where the page hangs or crashes, and before the first `reset`.
        """
        if self._tab is None:
            raise RunError("environments.browser: no episode has begun")
        if self._last is not None:
            return replace(self._last, text="The task is over.", reward=0.0)
        what = f"the action {action.kind} on the page {self._task[0]!r}"
        return self._run(self._act(self._tab, action), self.step_seconds, what)

    def state_key(self) -> str:
        """Returns a hash of the task and of the state of the page.

        The state is the document, fields, scrolls, focus, storage, random state, and the page's own `state()`. The
        clock is no part of it: pages for which time matters return the time in `state()`.
        """
        if self._tab is None:
            raise RunError("environments.browser: no episode has begun")
        state = self._run(self._tab.state(), self.step_seconds, f"reading the page {self._task[0]!r}")
        return hashlib.blake2b(repr((self._task, state)).encode("utf-8", "replace"), digest_size=16).hexdigest()

    def oracle(self) -> Action | None:
        """Returns the page's own next action, None where it knows none; raises ConfigError without `oracle()`."""
        if self._tab is None:
            raise RunError("environments.browser: no episode has begun")
        what = f"the oracle of the page {self._task[0]!r}"
        if not self._run(self._tab.ask("hasOracle"), self.step_seconds, what):
            raise ConfigError(f"environments.browser: the page {self._task[0]!r} has no oracle() in window.mmrl")
        parts = self._run(self._tab.ask("oracle"), self.step_seconds, what)
        return None if parts is None else _action(parts)

    def within(self, work: Callable[[Tab], Coroutine[Any, Any, Answer]], what: str) -> Answer:
        """Returns the result of `work` in the page; `what` says in errors what was done.

        Raises RunError where it fails or takes longer than `step_seconds`; the browser is then closed.
        """
        if self._tab is None:
            raise RunError("environments.browser: no episode has begun")
        return self._run(work(self._tab), self.step_seconds, what)

    def close(self) -> None:
        """Kills the browser, from any thread; a step that waits for the browser in another thread then raises."""
        chromium, self._chromium, self._browser, self._tab = self._chromium, None, None, None
        if chromium is not None:
            chromium.close()

    def _named(self, task: Prompt, seed: int) -> tuple[str, int]:
        known = sorted(file.stem for file in self.pages.glob("*.html"))
        name, own = task.target.get("task"), task.target.get("seed", seed)
        if name not in known:
            raise ConfigError(
                f"environments.browser: the target of a prompt needs a task, one of {', '.join(known)}; got {name!r}"
            )
        if not isinstance(own, int) or isinstance(own, bool):
            raise ConfigError(f"environments.browser: the seed of a target must be a whole number, got {own!r}")
        return str(name), own

    def _run(self, work: Coroutine[Any, Any, Answer], seconds: float, what: str) -> Answer:
        """Returns the result of `work`; after an error the browser is closed and not used again."""
        chromium = self._chromium
        if chromium is None:  # another thread has closed it meanwhile
            work.close()
            raise RunError(f"{what}: the browser is closed")
        try:
            return chromium.run(work, seconds, what)
        except RunError:
            self.close()
            raise

    def _start(self) -> None:
        """Starts the browser unless it runs; a ConfigError leaves no process behind."""
        assert self._chromium is not None, "reset has made it"
        work = self._chromium.start(self.executable, is_headless=self.headless, seconds=self.load_seconds)
        try:
            self._browser = self._run(work, self.load_seconds, "starting Chromium")
        except ConfigError:
            self.close()
            raise

    async def _open(self) -> Observation:
        tab, self._tab = self._tab, None
        if tab is not None:
            await tab.close()
        name, seed = self._task
        tab = Tab(self.pages, (self.width, self.height), scroll_step=self.scroll_step, dialogs=self.dialogs)
        await tab.open(self._browser, name, seed, self.load_seconds)
        self._tab = tab
        goal = await tab.ask("goal")
        return Observation(await self._picture(tab), tab.read_notices(), goal=None if goal is None else str(goal))

    async def _act(self, tab: Tab, action: Action) -> Observation:
        is_last, words = action.kind in ("answer", "finish"), REFUSED.get(action.kind, "")
        if not is_last and not words:
            try:
                await tab.act(action)
            except Refusal as refusal:
                words = f"This cannot be done: {refusal}."
        reward = _reward(await tab.ask("validate", action.text if action.kind == "answer" else None), self._task[0])
        is_done = is_last or reward >= 1
        text = " ".join(part for part in (words, tab.read_notices()) if part)
        observation = Observation(await self._picture(tab), text, is_done, reward if is_done else 0.0)
        self._last = observation if is_done else None
        return observation

    async def _picture(self, tab: Tab) -> StoredPicture:
        return StoredPicture(f"the page {self._task[0]}", content=await tab.look())


def _reward(value: object, name: str) -> float:
    """Returns the reward that a page gave; raises RunError unless it is a number in [0, 1]."""
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise RunError(
            f"environments.browser: validate() of the page {name!r} must return a number in [0, 1], got {value!r}"
        )
    return float(value)


def _action(parts: dict[str, Any]) -> Action:
    """Returns the action of an oracle's object: JSON has lists where Action has tuples."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in parts.items()}
    return Action(**values)
