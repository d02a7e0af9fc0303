"""Web pages in headless Chromium, as tasks of an agent: files of a folder, judged in the page itself."""

import hashlib
import math
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

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
class Browser:
    """A page of `folder` for each episode; `target` of a prompt says which: `{"task": "form", "seed": 7}`.

    The screenshot is what the page shows in `width` x `height` pixels, one for one. The same task, seed and actions
    give the same observations: the page's clock stands still between actions, `Math.random` and `crypto` draw from the
    target's seed (that of `reset` where it has none), nothing is animated, and no network is reached. Pixels are those
    of the Chromium and the fonts of the machine.

    A page says what it wants in `window.mmrl`: `goal` (text), `validate(answer)` (a reward in [0, 1]; 1 ends the
    episode), and may have `oracle()` (the next action, as an object with the fields of Action) and `state()` (what
    decides of the future and is not in the document). Of an answer or a finish the reward is what `validate` then
    says, and the episode is over.

    A page that hangs or crashes raises RunError and takes the browser with it; the next `reset` starts another one.
    """

    folder: str | None = None  # of pages; None: the shipped tasks
    executable: str | None = None  # None: Playwright's own Chromium, else one that is on PATH
    width: Side = 480
    height: Side = 360
    headless: bool = True
    dialogs: Dialogs = "accept"  # what becomes of confirm and prompt; an alert is accepted
    scroll_step: Annotated[float, Field(gt=0)] = 200.0  # pixels of a scroll without an amount
    step_seconds: Seconds = 20.0  # before a page counts as hung
    load_seconds: Seconds = 60.0  # to start a browser, and to load a page
    _chromium: Chromium | None = field(init=False, default=None, repr=False, compare=False)
    _browser: Any = field(init=False, default=None, repr=False, compare=False)
    _tab: Tab | None = field(init=False, default=None, repr=False, compare=False)
    _task: tuple[str, int] = field(init=False, default=("", 0), repr=False, compare=False)
    _last: Observation | None = field(init=False, default=None, repr=False, compare=False)  # of an episode that is over

    def __post_init__(self) -> None:
        if self.folder is not None and not Path(self.folder).is_dir():
            raise ConfigError(f"environments.browser.folder: {self.folder!r} is no folder")

    @property
    def pages(self) -> Path:
        """The folder of the pages."""
        return world.FOLDER if self.folder is None else Path(self.folder)

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Opens the task's page anew. Raises ConfigError for a target that names none, RunError where it does not load.

        The goal is the page's own.
        """
        self._task = self._named(task, seed)
        if self._chromium is None:
            self._chromium = Chromium()
        self._last = None
        self._start()
        return self._run(self._open(), self.load_seconds, f"opening the page {self._task[0]!r}")

    def step(self, action: Action) -> Observation:
        """Does the action and looks. Raises RunError where the page hangs or crashes, and without a `reset` before."""
        if self._tab is None:
            raise RunError("environments.browser: no episode has begun")
        if self._last is not None:
            return replace(self._last, text="The task is over.", reward=0.0)
        what = f"the action {action.kind} on the page {self._task[0]!r}"
        return self._run(self._act(self._tab, action), self.step_seconds, what)

    def state_key(self) -> str:
        """A hash of the task, of the page's document, fields, scrolls, focus, storage and random state, and of what
        its `state()` says. Not of the clock: pages for which time matters say so in `state()`."""
        if self._tab is None:
            raise RunError("environments.browser: no episode has begun")
        said = self._run(self._tab.state(), self.step_seconds, f"reading the page {self._task[0]!r}")
        return hashlib.blake2b(repr((self._task, said)).encode("utf-8", "replace"), digest_size=16).hexdigest()

    def oracle(self) -> Action | None:
        """The page's own next action, None where it knows none. Raises ConfigError for a page without `oracle()`."""
        if self._tab is None:
            raise RunError("environments.browser: no episode has begun")
        what = f"the oracle of the page {self._task[0]!r}"
        if not self._run(self._tab.ask("hasOracle"), self.step_seconds, what):
            raise ConfigError(f"environments.browser: the page {self._task[0]!r} has no oracle() in window.mmrl")
        said = self._run(self._tab.ask("oracle"), self.step_seconds, what)
        return None if said is None else _action(said)

    def close(self) -> None:
        """Kills the browser, from any thread; a step that waits for it elsewhere then raises."""
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
            raise ConfigError(f"environments.browser: the seed of a target is a whole number, got {own!r}")
        return str(name), own

    def _run(self, work: Coroutine[Any, Any, Answer], seconds: float, what: str) -> Answer:
        """The answer; a browser that gave none is not used again."""
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
        """Starts the browser where none runs; a ConfigError too leaves nothing behind."""
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
        seen = Observation(await self._picture(tab), text, is_done, reward if is_done else 0.0)
        self._last = seen if is_done else None
        return seen

    async def _picture(self, tab: Tab) -> StoredPicture:
        return StoredPicture(f"the page {self._task[0]}", content=await tab.look())


def _reward(said: object, name: str) -> float:
    if not isinstance(said, int | float) or not math.isfinite(said) or not 0 <= said <= 1:
        raise RunError(f"environments.browser: validate() of the page {name!r} says {said!r}, not a number in [0, 1]")
    return float(said)


def _action(said: dict[str, Any]) -> Action:
    """An oracle's object as an action: JSON has lists where Action has tuples."""
    parts: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in said.items()}
    return Action(**parts)
