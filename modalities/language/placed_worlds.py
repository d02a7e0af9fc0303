"""Environments in actors of a Ray cluster: `pool: ray` of an agent."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mmrl.core.actors import ActorSettings, LastingActor
from mmrl.core.contracts import Environment, RunError
from mmrl.core.data import Observation, Prompt
from mmrl.parsing.actions.action import Action

from .environment_workers import World

Call = tuple[str, tuple[Any, ...]]  # a method and its arguments


@dataclass
class PlacedEnvironment:
    """An environment whose copy lives in an actor; it gives the observations of the environment itself.

    Where the actor or its node ends in the middle of an episode, a new one is started and the episode is played again
    up to there: the same task, seed and actions give the same observations.
    """

    environment: Environment
    settings: ActorSettings
    _actor: LastingActor | None = field(init=False, repr=False, default=None)
    _played: list[Call] = field(init=False, repr=False, default_factory=list)  # of the episode so far

    def start(self) -> None:
        """Starts the actor without waiting. Raises ConfigError without Ray."""
        what = f"the environment {type(self.environment).__name__}"
        self._actor = LastingActor(partial(_same, self.environment), self.settings, what, self._played)

    def wait(self) -> None:
        """Waits for the actor. Raises ConfigError where there is no room for it."""
        self._begun.wait()

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Begins an episode."""
        self._played.clear()
        if self._actor is None:  # it was closed
            self.start()
            self.wait()
        seen: Observation = self._begun.call("reset", task, seed)
        self._played.append(("reset", (task, seed)))
        return seen

    def step(self, action: Action) -> Observation:
        """Executes an action."""
        seen: Observation = self._begun.call("step", action)
        self._played.append(("step", (action,)))
        return seen

    def state_key(self) -> str:
        """Returns the name of the present state."""
        key: str = self._begun.call("state_key")
        return key

    def close(self) -> None:
        """Ends the actor, from any thread."""
        actor, self._actor = self._actor, None
        if actor is not None:
            actor.close()

    @property
    def _begun(self) -> LastingActor:
        if self._actor is None:
            raise RunError(f"the environment {type(self.environment).__name__} is closed")
        return self._actor


def _same(environment: Environment) -> Environment:
    return environment


def wait_for(worlds: list[World]) -> None:
    """Waits until placed environments can be called: loading one is no part of a step's time."""
    for world in worlds:
        if isinstance(world.environment, PlacedEnvironment):
            world.environment.wait()
