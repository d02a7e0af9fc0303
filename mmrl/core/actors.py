"""Objects in processes of a Ray cluster; nothing of Ray stands outside of this file."""

import importlib
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field

from mmrl.core.checked import Checked
from mmrl.system.errors import ConfigError, RunError, describe

Pool = Literal["threads", "ray"]
Result = TypeVar("Result")
PAUSE = 0.25  # seconds before the first restart of an actor; it doubles


@dataclass(frozen=True)
class ActorSettings(Checked):
    """Where the actors of `pool: ray` run, and what each of them takes.

    Moritz et al. 2018, "Ray: A Distributed Framework for Emerging AI Applications", arXiv 1712.05889. Ray sends objects
    by pickle: all machines of a cluster must trust each other.
    """

    address: str | None = None  # of a running cluster, host:port or auto; null: this machine alone, for this run
    cpus: Annotated[float, Field(ge=0, le=1e4)] = 1.0  # that one actor takes of its node; Ray starts no more than fit
    gpus: Annotated[float, Field(ge=0, le=1e3)] = 0.0  # the same, of GPUs; above 0 the actor computes on a GPU
    # How often a call is made again in a new actor, elsewhere if need be, where its actor or its node has ended.
    restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    start_seconds: Annotated[float, Field(gt=0, le=1e6)] = 300.0  # until an actor has a place and is loaded

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class LostActorError(RunError):
    """The process of an actor, or its node, has ended."""


class Actor:
    """An object that lives in a process of the cluster. It is not started again by itself: what it knew is lost."""

    def __init__(self, make: Callable[[], Any], settings: ActorSettings, what: str) -> None:
        """Starts a process without waiting for it. Raises ConfigError where Ray is not installed or not there.

        Args:
            make: makes the object there; it is sent by pickle. settings: of the cluster and the actor.
            what: names the object in errors.
        """
        import torch

        self._ray, self._settings, self._what = connected(settings), settings, what
        remote = self._ray.remote(_Holder)
        options: dict[str, Any] = {"num_cpus": settings.cpus, "num_gpus": settings.gpus, "max_restarts": 0}
        options |= {"max_task_retries": 0, "scheduling_strategy": "SPREAD"}  # over the nodes
        self._handle = remote.options(**options).remote(make, torch.get_num_threads())

    def wait(self) -> None:
        """Waits until the object is made; raises what making it raised, and ConfigError where no node has room."""
        ray, settings = self._ray, self._settings
        try:
            self._answer(ray.get(self._handle.start.remote(), timeout=settings.start_seconds))
        except ray.exceptions.GetTimeoutError as error:
            there = {name: ray.cluster_resources().get(name, 0.0) for name in ("CPU", "GPU")}
            raise ConfigError(
                f"{self._what} has no place or is not loaded after {settings.start_seconds:g} seconds "
                f"(actors.start_seconds): it takes {settings.cpus:g} CPUs and {settings.gpus:g} GPUs, and the cluster "
                f"has {there['CPU']:g} and {there['GPU']:g} for all actors; give fewer cpus, or fewer actors"
            ) from error
        except ray.exceptions.RayError as error:
            raise self._lost(error) from error

    def call(self, method: str, *arguments: Any) -> Any:
        """Returns what a method of the object returns; raises what it raises, and LostActorError."""
        ray = self._ray
        try:
            answer = ray.get(self._handle.call.remote(method, arguments))
        except ray.exceptions.RayTaskError as error:  # not of the object, whose errors are answers
            raise RunError(f"{self._what}: {str(error)[-500:]}") from error
        except ray.exceptions.RayError as error:
            raise self._lost(error) from error
        return self._answer(answer)

    def close(self) -> None:
        """Ends the process, also in the middle of a call."""
        self._ray.kill(self._handle)

    def _answer(self, answer: tuple[Any, BaseException | None]) -> Any:
        value, error = answer
        if error is not None:
            raise error
        return value

    def _lost(self, error: Exception) -> LostActorError:
        why = " ".join(str(error).split())
        return LostActorError(f"the process or the node of {self._what} has ended: {shorten(why, 300)}")


class _Holder:
    """The object in its process. What it raises is an answer too, so that the caller sees the exception itself."""

    def __init__(self, make: Callable[[], Any], num_threads: int) -> None:
        import torch

        torch.set_num_threads(num_threads)  # as where threads call it: sums do not depend on the place
        self._make, self._object = make, None

    def start(self) -> tuple[Any, BaseException | None]:
        """Makes the object."""
        value, error = _tried(self._make)
        self._object = value
        return None, error

    def call(self, method: str, arguments: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
        """Calls a method of the object."""
        return _tried(lambda: getattr(self._object, method)(*arguments))


def _tried(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:  # the caller raises it again, as a thread's `Future` does
        try:
            pickle.loads(pickle.dumps(error))
        except (pickle.PickleError, TypeError, AttributeError, ValueError):
            return None, RuntimeError(describe(error))
        return None, error


class LastingActor:
    """An actor that is started anew where its process or its node ends; what it knew is made again by `again`."""

    def __init__(
        self,
        make: Callable[[], Any],
        settings: ActorSettings,
        what: str,
        again: Sequence[tuple[str, tuple[Any, ...]]] = (),
    ) -> None:
        """Starts without waiting. `again`: the calls that a new process gets first, as they are then."""
        self._make, self._settings, self._what, self._again = make, settings, what, again
        self._is_closed = False
        self._actor = Actor(make, settings, what)

    def wait(self) -> None:
        """Waits until the object is made. Raises as `Actor.wait`, and RunError after too many ends."""
        self._outliving(lambda: self._actor.wait())

    def call(self, method: str, *arguments: Any) -> Any:
        """Returns what a method of the object returns; raises what it raises, and RunError after too many ends."""
        return self._outliving(lambda: self._actor.call(method, *arguments))

    def close(self) -> None:
        """Ends the process, from any thread; a call that waits for it then raises."""
        self._is_closed = True
        self._actor.close()

    def _outliving(self, call: Callable[[], Result]) -> Result:
        for number in range(self._settings.restarts + 1):
            try:
                if number:
                    self._renew()
                return call()
            except LostActorError as lost:
                error = lost
            if self._is_closed:
                raise RunError(f"{self._what} is closed")
            time.sleep(min(PAUSE * 2**number, 10.0))  # a node that dies takes actors for a moment
        raise RunError(f"{error}; {self._settings.restarts} restarts (actors.restarts) did not help")

    def _renew(self) -> None:
        self._actor = Actor(self._make, self._settings, self._what)
        self._actor.wait()
        for method, arguments in self._again:
            self._actor.call(method, *arguments)


def connected(settings: ActorSettings) -> Any:
    """Returns the package ray, connected to its cluster; one on this machine is started at need, on loopback.

    Raises ConfigError where the package is missing, or there is no cluster at the address.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError("pool: ray needs the package ray: pip install 'mmrl[ray]'") from error
    if not ray.is_initialized():
        quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        if settings.address is None:
            quiet |= {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        else:
            quiet |= {"address": settings.address}
        try:
            ray.init(**quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(f"there is no Ray cluster at {settings.address or 'this machine'!r}: {error}") from error
    return ray
