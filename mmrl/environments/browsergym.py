"""Tasks of BrowserGym (MiniWoB, WebArena, WorkArena ...) as an environment of agents on screenshots."""

import hashlib
import importlib
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, RunError
from mmrl.core.data import Observation, Prompt
from mmrl.parsing.actions.action import Action

from .base.browsergym_protocol import observation_dict, observation_of, read, words

__all__ = ["BrowserGym", "observation_dict", "observation_of", "read", "words"]

SUBSETS = ("coord", "bid", "chat", "infeas", "nav")  # the sets of BrowserGym's calls that actions are written in


@dataclass
class BrowserGym(Checked):
    """An environment of BrowserGym, with its screenshots and error texts; actions are written as BrowserGym's calls.

    A prompt's target may have `task` (a registered name, which replaces `env`) and `seed`. An answer is a message to
    the user, and ends the episode only where the task ends it; a finish always does. The text of an observation is
    BrowserGym's own, for a page that cannot be reached or an action that fails.

    BrowserGym keeps one Playwright for a whole process, so all of its environments must be used from one thread.
    """

    # A registered name such as browsergym/miniwob.click-test; a `task` in a prompt's target comes first. `null`: every
    # prompt names its own.
    env: str | None = None
    package: str = "browsergym.core"  # a package that is imported first, since it registers the tasks
    executable: str | None = None  # a Chromium; `null`: Playwright's own
    scroll_step: Annotated[float, Field(gt=0)] = 200.0  # pixels of a scroll without an amount
    settings: dict[str, Any] = field(default_factory=dict)  # more for `gymnasium.make`, such as `task_kwargs`
    _env: Any = field(init=False, default=None, repr=False, compare=False)
    _name: str = field(init=False, default="", repr=False, compare=False)
    _last: Observation | None = field(init=False, default=None, repr=False, compare=False)
    _observation: Any = field(init=False, default=None, repr=False, compare=False)

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Begins an episode; raises ConfigError where BrowserGym is not installed or the task is unknown."""
        name = task.target.get("task", self.env)
        if not isinstance(name, str):
            raise ConfigError("environments.browsergym: give `env`, or prompts whose target has a `task`")
        if self._env is None or name != self._name:
            self.close()
            self._env, self._name = self._made(name), name
        self._observation, _ = self._env.reset(seed=task.target.get("seed", seed))
        self._last = observation_of(self._observation, is_first=True)
        return self._last

    def step(self, action: Action) -> Observation:
        """Does the action; an action without a call of BrowserGym is refused in the observation's text."""
        last = self._last
        if last is None:
            raise RunError("environments.browsergym: no episode has begun")
        if last.is_done:
            return replace(last, text="The task is over.", reward=0.0)
        try:
            calls = words(action, scroll_step=self.scroll_step)
        except ValueError as error:
            return replace(last, text=f"This cannot be done: {error}.", reward=0.0, goal=None)
        self._observation, reward, has_ended, is_cut, _ = self._env.step(calls)
        is_done = bool(has_ended or is_cut or action.kind == "finish")
        self._last = observation_of(self._observation, reward=reward, is_done=is_done)
        return self._last

    def state_key(self) -> str:
        """Returns a hash of the task, the address, the focus and the screenshot."""
        if self._last is None:
            raise RunError("environments.browsergym: no episode has begun")
        place = repr((self._name, self._observation.get("url"), self._observation.get("focused_element_bid")))
        digest = hashlib.blake2b(place.encode(), digest_size=16)
        digest.update(self._last.screenshot.load().tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        """Closes BrowserGym's environment."""
        env, self._env, self._last = self._env, None, None
        if env is not None:
            env.close()

    def _made(self, name: str) -> Any:
        try:
            gymnasium = importlib.import_module("gymnasium")
            importlib.import_module(self.package)
            highlevel = importlib.import_module("browsergym.core.action.highlevel")
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"environments.browsergym: cannot import {error.name!r}; BrowserGym is installed by itself, since it "
                "pins an older Playwright: pip install browsergym-core, and the package of your tasks"
            ) from error
        actions = highlevel.HighLevelActionSet(subsets=list(SUBSETS), multiaction=True)
        settings = {"action_mapping": actions.to_python_code, **self.settings}
        if self.executable is not None:
            started = {**settings.get("pw_chromium_kwargs", {}), "executable_path": self.executable}
            settings["pw_chromium_kwargs"] = started
        try:
            return gymnasium.make(name, **settings)
        except gymnasium.error.Error as error:
            raise ConfigError(f"environments.browsergym: {name!r}: {error}") from error
