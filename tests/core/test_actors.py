"""Actors without Ray: what is refused, and what outlives an end. With Ray: tests/test_ray_runs.py."""

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from mmrl.core import actors
from mmrl.core.actors import ActorSettings, LastingActor, LostActorError, connected
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError, RunError
from tests.parameters import in_one_test


class FakeActor:
    """An object here, whose process ends at the calls in `ends`, counted over all actors."""

    ends: set[int]
    count = 0
    made = 0

    def __init__(self, make: Callable[[], Any], settings: ActorSettings, what: str) -> None:
        self.object, self.what = make(), what
        FakeActor.made += 1

    def wait(self) -> None:
        """Is there at once."""

    def call(self, method: str, *arguments: Any) -> Any:
        FakeActor.count += 1
        if FakeActor.count in self.ends:
            raise LostActorError(f"the process of {self.what} has ended")
        return getattr(self.object, method)(*arguments)

    def close(self) -> None:
        """Has nothing to end."""


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def at(*calls: int) -> None:
        FakeActor.ends, FakeActor.count, FakeActor.made = set(calls), 0, 0

    monkeypatch.setattr(actors, "Actor", FakeActor)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    at()
    return at


def test_a_new_process_gets_the_earlier_calls_first(ending: Callable[..., None]) -> None:
    earlier: list[tuple[str, tuple[Any, ...]]] = []
    actor = LastingActor(list, ActorSettings(restarts=2), "a list", earlier)
    for number in range(3):
        actor.call("append", number)
        earlier.append(("append", (number,)))
    ending(1, 3)  # at once, and again while the second one gets the earlier calls
    assert actor.call("copy") == [0, 1, 2]
    assert FakeActor.made == 2


def test_too_many_ends_are_an_error(ending: Callable[..., None]) -> None:
    actor = LastingActor(list, ActorSettings(restarts=2), "a list")
    ending(1, 2, 3)
    with pytest.raises(
        RunError, match=r"the process of a list has ended; 2 restarts \(actors\.restarts\) did not help"
    ):
        actor.call("copy")
    assert FakeActor.made == 2
    assert actor.call("copy") == []


def test_a_closed_actor_is_not_started_again(ending: Callable[..., None]) -> None:
    actor = LastingActor(list, ActorSettings(), "a list")
    actor.close()
    ending(1)
    with pytest.raises(RunError, match="a list is closed"):
        actor.call("copy")
    assert FakeActor.made == 0


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'mmrl\[ray\]'"):
        connected(ActorSettings())


@in_one_test(
    ("override", "message"),
    [
        ("scoring.pool=processes", "'threads' or 'ray'"),
        ("scoring.actors.cpu=1", "did you mean 'cpus'"),
        ("scoring.actors.restarts=-1", "greater than or equal to 0"),
        ("scoring.copies=0", "greater than or equal to 1"),
    ],
)
def test_settings_that_are_not_allowed(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("quickstart", [override])
