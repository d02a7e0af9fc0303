"""Tasks of BrowserGym (MiniWoB, WebArena, WorkArena ...) as a world of agents on screenshots."""

import hashlib
import importlib
from dataclasses import dataclass, field, replace
from typing import Any

from mmrl.core.contracts import ConfigError, RunError
from mmrl.core.data import Observation, Prompt
from mmrl.parsing.actions.action import Action

from .base.browsergym_protocol import observation_dict, observation_of, read, words

__all__ = ["BrowserGym", "observation_dict", "observation_of", "read", "words"]

SUBSETS = ("coord", "bid", "chat", "infeas", "nav")  # of BrowserGym's calls: those that actions are written in


@dataclass
class BrowserGym:
    """An environment of BrowserGym: its screenshot and errors, our actions written as its calls.

    A prompt's target may have `task` (a registered name, else `env` counts) and `seed`. An answer is a message to the
    user, and ends the episode only where the task says so; a finish always does. A page that cannot be reached or an
    action that fails is said in the observation, as BrowserGym says it.

    BrowserGym keeps one Playwright for a whole process, so that all of its worlds must be used from one thread.
    """

    env: str | None = None  # such as browsergym/miniwob.click-test; None: every prompt names its own
    package: str = "browsergym.core"  # imported first: it registers the tasks
    executable: str | None = None  # a Chromium; None: Playwright's own
    scroll_step: float = 200.0  # pixels of a scroll without an amount
    settings: dict[str, Any] = field(default_factory=dict)  # more for gymnasium.make, such as task_kwargs
    _env: Any = field(init=False, default=None, repr=False, compare=False)
    _name: str = field(init=False, default="", repr=False, compare=False)
    _last: Observation | None = field(init=False, default=None, repr=False, compare=False)
    _observation: Any = field(init=False, default=None, repr=False, compare=False)

    def reset(self, task: Prompt, seed: int) -> Observation:
        """A new episode; raises ConfigError where BrowserGym or the task is not there."""
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
        """Does the action; one that BrowserGym has no call for is said and is no step."""
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
        """A hash of the task, the address, the focus and the screenshot."""
        if self._last is None:
            raise RunError("environments.browsergym: no episode has begun")
        place = repr((self._name, self._observation.get("url"), self._observation.get("focused_element_bid")))
        said = hashlib.blake2b(place.encode(), digest_size=16)
        said.update(self._last.screenshot.load().tobytes())
        return said.hexdigest()

    def close(self) -> None:
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
