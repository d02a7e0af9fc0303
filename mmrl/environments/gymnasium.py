"""Environments of gymnasium for agents on screenshots, and environments of mmrl for gymnasium."""

import hashlib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Environment, RunError
from mmrl.core.data import Observation, Prompt
from mmrl.parsing.actions.action import Action

from .base.gymnasium_actions import ToEnvironment, by_clicks, by_keys, check_clicks, of_the_user
from .base.pixels import as_picture

if TYPE_CHECKING:
    from .base.gymnasium_wrapper import WorldEnv

RENDER, OBSERVATION = "render", "observation"
Cells = Annotated[int, Field(ge=1)]


@dataclass
class Gymnasium(Checked):
    """The environment `gymnasium.make(env)`, with its rendered or its observed image as the screenshot.

    The target of a prompt may have `seed` (which replaces that of `reset`) and `options`, both passed to the
    environment's reset. `answer` and `finish` end the episode without a step. `state_key` is a hash of the observation
    and the screenshot, which is the state only where nothing else decides the future. The environment runs in this
    process: an environment that hangs cannot be killed, and another thread's `close` has to wait for it.
    """

    env: str  # a registered name; `module:Name-v0` imports the module first
    # `keys`, `clicks`, or `module:function` of your own: (action, (width, height), space) -> the environment's action.
    actions: str
    # For `actions: keys`: the number of the environment's action, by a hotkey (`ctrl+c`), a typed text or a kind.
    keys: dict[str, int] = field(default_factory=dict)
    grid: tuple[Cells, Cells] | None = None  # for `actions: clicks` in a Discrete space: columns, rows
    # What is shown: `render`, `observation` (which is then an image), or the key of an image in a dict of observations.
    image: str = RENDER
    goal: str | None = None  # the key of a text in a dict of observations; `null`: the prompt is the goal
    settings: dict[str, Any] = field(default_factory=dict)  # more for `gymnasium.make`
    _env: Any = field(init=False, default=None, repr=False, compare=False)
    _to_environment: ToEnvironment | None = field(init=False, default=None, repr=False, compare=False)
    _last: Observation | None = field(init=False, default=None, repr=False, compare=False)
    _observed: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.actions == "keys" and not self.keys:
            raise ConfigError("environments.gymnasium: `actions: keys` needs `keys`, such as {left: 0, right: 1}")

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Begins an episode; raises ConfigError for an environment that is unknown, or has other actions or images."""
        if self._env is None:
            self._open()
        observed, _ = self._env.reset(seed=task.target.get("seed", seed), options=task.target.get("options"))
        self._observed = observed
        goal = None if self.goal is None else str(observed[self.goal])
        self._last = replace(self._seen(), goal=goal)
        return self._last

    def step(self, action: Action) -> Observation:
        """Does the environment's action; an action without one is refused in the observation's text, and is no step."""
        last = self._last
        if last is None or self._to_environment is None:
            raise RunError("environments.gymnasium: no episode has begun")
        if last.is_done:
            return replace(last, text="The task is over.", reward=0.0)
        if action.kind in ("answer", "finish"):
            self._last = replace(last, text="", is_done=True, reward=0.0, goal=None)
            return self._last
        try:
            meant = self._to_environment(action, last.screenshot.size, self._env.action_space)
        except ValueError as error:
            return replace(last, text=f"This cannot be done: {error}.", reward=0.0, goal=None)
        self._observed, reward, has_ended, is_cut, _ = self._env.step(meant)
        text = "The time is up." if is_cut and not has_ended else ""
        self._last = replace(self._seen(), text=text, is_done=bool(has_ended or is_cut), reward=float(reward))
        return self._last

    def state_key(self) -> str:
        """Returns a hash of the observation and the screenshot."""
        if self._last is None:
            raise RunError("environments.gymnasium: no episode has begun")
        digest = hashlib.blake2b(self._last.screenshot.load().tobytes(), digest_size=16)
        _feed(digest, self._observed)
        return digest.hexdigest()

    def close(self) -> None:
        """Closes the environment of gymnasium."""
        env, self._env, self._last, self._to_environment = self._env, None, None, None
        if env is not None:
            env.close()

    def _open(self) -> None:
        gymnasium = _gymnasium()
        settings = {"render_mode": "rgb_array", **self.settings} if self.image == RENDER else self.settings
        try:
            env = gymnasium.make(self.env, **settings)
        except (gymnasium.error.Error, ImportError) as error:
            raise ConfigError(f"environments.gymnasium.env: {self.env!r}: {error}") from error
        if self.actions == "clicks":
            check_clicks(env.action_space, self.grid)
            self._to_environment = by_clicks(self.grid)
        else:
            self._to_environment = by_keys(self.keys) if self.actions == "keys" else of_the_user(self.actions)
        self._env = env

    def _seen(self) -> Observation:
        observed = self._observed
        if self.image not in (RENDER, OBSERVATION) and not (isinstance(observed, dict) and self.image in observed):
            keys = f"; its keys are {', '.join(observed)}" if isinstance(observed, dict) else ""
            raise ConfigError(f"environments.gymnasium.image: {self.image!r} is not in what {self.env} observes{keys}")
        pixels = {RENDER: self._env.render, OBSERVATION: lambda: observed}.get(self.image, lambda: observed[self.image])
        try:
            return Observation(as_picture(pixels(), self.env))
        except ValueError as error:
            raise ConfigError(f"environments.gymnasium.image: {error}") from error


def as_gymnasium(world: Environment, prompts: Sequence[Prompt], size: tuple[int, int]) -> "WorldEnv":
    """Returns an environment of mmrl as a `gymnasium.Env`, which closes the environment when it is closed.

    An observation is a dict of `screenshot` [H, W, 3] uint8, `text` and `goal`. An action is a dict with the parts of
    `Action`, of which each kind reads its own (`WorldEnv.action_values` makes such a dict). `text` says why something
    was no action, or could not be done.

    Args:
        prompts: the tasks; `reset(options={"prompt": number})` chooses one, else the seed does.
        size: width and height of the screenshots in pixels.

    Raises:
        ConfigError: if gymnasium is not installed, or there is no prompt.
    """
    _gymnasium()
    from .base.gymnasium_wrapper import WorldEnv

    return WorldEnv(world, prompts, size)


def _gymnasium() -> Any:
    """Imports gymnasium; raises ConfigError, with the extra to install, where it is missing."""
    try:
        return importlib.import_module("gymnasium")
    except ModuleNotFoundError as error:
        raise ConfigError("environments of gymnasium need it: pip install 'mmrl[gymnasium]'") from error


def _feed(digest: Any, observed: Any) -> None:
    """Adds arrays, numbers, texts, and dicts and tuples of these to a hash."""
    if isinstance(observed, dict):
        for key in sorted(observed):
            digest.update(repr(key).encode())
            _feed(digest, observed[key])
    elif isinstance(observed, tuple | list):
        for part in observed:
            _feed(digest, part)
    elif hasattr(observed, "tobytes"):
        digest.update(f"{observed.dtype}{observed.shape}".encode() + observed.tobytes())
    else:
        digest.update(repr(observed).encode())
