"""Environments of mmrl as environments of gymnasium."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import gymnasium
import numpy
from gymnasium import spaces

from mmrl.core.contracts import ConfigError, Environment
from mmrl.core.data import Observation, Prompt
from mmrl.parsing.actions.action import CLICKS, Action, Direction, Kind
from mmrl.parsing.actions.names import keys_of

from .pixels import as_pixels

KINDS: tuple[Kind, ...] = get_args(Kind)
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
MOST = 10_000.0  # the largest amount, in pixels or seconds
# The parts of the action space that a kind takes.
TAKES: Mapping[Kind, tuple[str, ...]] = {
    **{kind: ("point",) for kind in CLICKS},
    **{"long_press": ("point", "amount"), "move": ("point",), "drag": ("point", "end")},
    **{"scroll": ("point", "direction", "amount"), "type": ("text",), "hotkey": ("keys",), "wait": ("amount",)},
    **{"open": ("text",), "answer": ("text",), "finish": ("text",)},
}


class AnyText(spaces.Space[str]):  # type: ignore[misc]  # mypy does not read gymnasium
    """The space of all texts; its samples are short texts of small letters."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        letters = self.np_random.integers(97, 123, size=int(self.np_random.integers(1, 9)))
        return "".join(map(chr, letters))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    def __hash__(self) -> int:
        return hash(AnyText)

    def __repr__(self) -> str:
        return "AnyText()"


class WorldEnv(gymnasium.Env[dict[str, Any], dict[str, Any]]):  # type: ignore[misc]  # mypy does not read gymnasium
    """An environment of mmrl as one of gymnasium, see `mmrl.environments.gymnasium.as_gymnasium`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012  # as gymnasium declares it

    def __init__(self, world: Environment, prompts: Sequence[Prompt], size: tuple[int, int]) -> None:
        if not prompts:
            raise ConfigError("a world for gymnasium needs at least one prompt")
        self.world, self.prompts, self.size = world, tuple(prompts), size
        self.render_mode = "rgb_array"
        width, height = size
        text = AnyText()
        self.observation_space = spaces.Dict(
            screenshot=spaces.Box(0, 255, (height, width, 3), numpy.uint8), text=text, goal=AnyText()
        )
        corner = numpy.array([width - 1, height - 1], numpy.float32)
        self.action_space = spaces.Dict(
            kind=spaces.Discrete(len(KINDS)),
            point=spaces.Box(numpy.zeros(2, numpy.float32), corner),
            end=spaces.Box(numpy.zeros(2, numpy.float32), corner),
            text=AnyText(),
            keys=AnyText(),
            direction=spaces.Discrete(len(DIRECTIONS)),
            amount=spaces.Box(0.0, MOST, (1,), numpy.float32),
        )
        self._goal, self._last = "", None

    _last: Observation | None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begins an episode of the prompt `options["prompt"]`, or of one that the seed chooses."""
        super().reset(seed=seed)
        number = (options or {}).get("prompt")
        if number is None:
            number = int(self.np_random.integers(len(self.prompts)))
        prompt = self.prompts[number]
        observation = self.world.reset(prompt, int(self.np_random.integers(2**31)))
        self._goal = observation.goal or prompt.text
        return self._observation(observation), {"prompt": number}

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Does the action; the text of the observation refuses a member of the action space that is no action."""
        assert self._last is not None, "gymnasium resets before it steps"
        try:
            meant = self.read(action)
        except ValueError as error:
            refused = {**self._observation(self._last), "text": f"This is no action: {error}."}
            return refused, 0.0, self._last.is_done, False, {"action": None}
        observation = self.world.step(meant)
        return self._observation(observation), float(observation.reward), observation.is_done, False, {"action": meant}

    def render(self) -> Any:
        """Returns the last screenshot [H, W, 3], uint8, RGB; None before the first `reset`."""
        return None if self._last is None else as_pixels(self._last.screenshot)

    def close(self) -> None:
        """Closes the environment of mmrl."""
        self.world.close()

    def read(self, values: Mapping[str, Any]) -> Action:
        """Returns the action of a member of the action space; raises ValueError where it is no action."""
        kind = KINDS[int(values["kind"])]
        read: dict[str, Any] = {
            "point": tuple(map(float, values["point"])),
            "end": tuple(map(float, values["end"])),
            "text": str(values["text"]),
            "keys": keys_of(str(values["keys"])),
            "direction": DIRECTIONS[int(values["direction"])],
            "amount": float(values["amount"][0]),
        }
        parts: dict[str, Any] = {name: read[name] for name in TAKES[kind]}
        return Action(kind, **parts)

    def action_values(self, action: Action) -> dict[str, Any]:
        """Returns the member of the action space for an action; a box becomes its centre.

        Raises:
            ValueError: if the action lacks a part that this space must have (the start of a drag, an amount, a place).
        """
        values: dict[str, Any] = {
            "kind": numpy.int64(KINDS.index(action.kind)),
            "point": numpy.zeros(2, numpy.float32),
            "end": numpy.zeros(2, numpy.float32),
            "text": "",
            "keys": "",
            "direction": numpy.int64(0),
            "amount": numpy.zeros(1, numpy.float32),
        }
        for name in TAKES[action.kind]:
            part = getattr(action, name)
            if part is None and name != "text":
                raise ValueError(f"an action of this space needs its {name}, got {action}")
            if name == "direction":
                values[name] = numpy.int64(DIRECTIONS.index(part))
            elif name in ("text", "keys"):
                values[name] = part or "" if name == "text" else "+".join(part)
            else:
                values[name] = numpy.atleast_1d(numpy.asarray(part, numpy.float32))
        return values

    def _observation(self, observation: Observation) -> dict[str, Any]:
        self._last = observation
        pixels = as_pixels(observation.screenshot)
        width, height = self.size
        if pixels.shape != (height, width, 3):
            raise ConfigError(
                f"the environment shows {observation.screenshot.size} pixels, and as_gymnasium got {self.size}"
            )
        return {"screenshot": pixels, "text": observation.text, "goal": self._goal}
