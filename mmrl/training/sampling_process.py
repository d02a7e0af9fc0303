"""A process that samples the rollouts of the next iteration with a network of its own, while this one learns."""

import io
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Keeping, Modality, Placement, RunError
from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import GroupKey, seed_from
from mmrl.plans.groups import GroupPlan
from mmrl.plans.offline import roll_out
from mmrl.system.errors import describe

_PATIENCE = 20.0  # seconds that its end may take
_FOR_THE_RUN = (signal.SIGINT, signal.SIGTERM)  # signals that end a run in good time, and this process with it
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GroupRequest:
    """Groups that are sampled in one call of the policy."""

    prompts: tuple[Prompt, ...]
    plans: tuple[GroupPlan, ...]
    keys: tuple[GroupKey, ...]


@dataclass(frozen=True)
class _Setting:
    """What the process is told first."""

    policy: bytes  # pickled, not prepared
    device: str
    dtype: torch.dtype
    seed: int  # of the run
    threads: int
    tf32: tuple[bool, bool]  # of products of matrices, and of convolutions


@dataclass(frozen=True)
class _Work:
    """A rollout to sample, in as many requests as the policy is called with."""

    iteration: int
    weights: Mapping[str, Tensor]
    requests: Sequence[GroupRequest]


@dataclass(frozen=True)
class _Reply:
    """What became of a request."""

    rollout: Rollout | None
    refusal: str = ""  # why the run samples it itself
    failure: str = ""  # why the run ends


@dataclass
class SamplingProcess:
    """Another process with the policy's network on a device of its own, which samples by the weights that it is sent.

    It starts, and loads the model, when it first has something to sample. One rollout at a time is sampled ahead, in as
    many requests as the policy is called with; each is taken once.
    """

    policy: bytes = field(repr=False)  # what `packed` made of it
    device: str  # of torch
    dtype: torch.dtype
    seed: int  # of the run
    num_taken: int = field(default=0, init=False)  # samples so far
    # the weights that sample what was not taken yet, or that are to sample it again; empty where all was taken
    sampled_by: Mapping[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    _waiting: list[tuple[GroupKey, ...]] = field(default_factory=list, init=False)  # of the requests under way
    _folder: Path = field(default_factory=Path.cwd, init=False, repr=False)  # by which the settings name files
    _connection: Connection | None = field(default=None, init=False, repr=False)
    _outbox: "SimpleQueue[bytes | None]" = field(default_factory=SimpleQueue, init=False, repr=False)
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False, repr=False)
    _end: Callable[[], None] = field(default=lambda: None, init=False, repr=False)

    def begin(self, iteration: int, weights: Mapping[str, Tensor], requests: Sequence[GroupRequest]) -> None:
        """Lets it sample by these trained tensors, in the place of what was not taken; returns at once.

        Raises RunError where the process ended.
        """
        while self._waiting:
            self._receive()
        sent = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights.items()}
        if self._connection is None:
            self._start()
        self._send(_Work(iteration, sent, requests))
        self._waiting = [request.keys for request in requests]
        self.sampled_by = sent if requests else {}

    def take(self, keys: Sequence[GroupKey]) -> Rollout | None:
        """Returns the rollout of these groups if it was sampled ahead, and waits for it; None: it was not, or could
        not be.

        Raises RunError where the process failed.
        """
        if tuple(keys) not in self._waiting:
            return None
        while self._waiting[0] != tuple(keys):
            self._receive()
        rollout = self._receive()
        self.num_taken += 0 if rollout is None else rollout.num_samples
        return rollout

    def close(self) -> None:
        """Ends the process, whatever it does; `sampled_by` stays, and the next `begin` starts another."""
        self._end()
        self._waiting, self._connection = [], None

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        # not by -m: what it pickles must be of this module, not of its main one; -P: no file of the folder shadows
        # what is imported, which is found where this process finds it
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main({theirs.fileno()})"
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_RUN)  # until the process ignores them
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,
                cwd=self._folder,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._connection, self._outbox = Connection(ours.detach()), SimpleQueue()
        Thread(target=_send_all, args=(self._connection, self._outbox), daemon=True).start()
        self._end = finalize(self, _end, self._connection, self._outbox, self._process)
        self._send(_Setting(self.policy, self.device, self.dtype, self.seed, torch.get_num_threads(), _tf32()))

    def _receive(self) -> Rollout | None:
        assert self._connection is not None, "it was begun"
        self._waiting.pop(0)
        try:
            reply: _Reply = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._lost() from error
        if reply.failure:
            raise RunError(f"the process that samples ahead on {self.device} (rollout.devices) failed: {reply.failure}")
        if reply.refusal:
            log.warning("not sampled ahead: %s", reply.refusal)
        if not self._waiting:
            self.sampled_by = {}
        return reply.rollout

    def _send(self, message: object) -> None:
        self._outbox.put(_written(message))

    def _lost(self) -> RunError:
        assert self._process is not None, "it was started"
        self._waiting = []
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        return RunError(
            f"the process that samples ahead on {self.device} (rollout.devices) ended, with exit code "
            f"{self._process.poll()}; its own words are above"
        )


def packed(policy: Modality) -> bytes:
    """Returns a policy that is not prepared yet, as another process can read it.

    Raises ConfigError where it cannot be given to another process.
    """
    if type(policy).__module__ == "__main__":
        raise ConfigError(
            f"rollout.devices: {type(policy).__name__} is of the script that runs, which another process does not "
            "import; move it into a module"
        )
    try:
        return pickle.dumps(policy)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"rollout.devices: the policy cannot be given to another process: {error}") from error


def check_device(name: str, trains_on: torch.device) -> None:
    """Raises ConfigError for a device that is not there, or of another kind than the one that the run trains on."""
    device = torch.device(name)
    if device.type != trains_on.type:
        raise ConfigError(f"rollout.devices must be of the kind that the run trains on, {trains_on.type}; got {name!r}")
    if device.type != "cpu" and (device.index or 0) >= torch.accelerator.device_count():
        raise ConfigError(
            f"rollout.devices: {name!r} is not there; this machine has {torch.accelerator.device_count()}"
        )


def _end(connection: Connection, outbox: "SimpleQueue[bytes | None]", process: "subprocess.Popen[bytes]") -> None:
    outbox.put(None)
    connection.close()  # which ends it, wherever it is
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:  # it has stopped
        process.kill()
        process.wait()


def _send_all(connection: Connection, outbox: "SimpleQueue[bytes | None]") -> None:
    """Sends all messages, so that nobody waits until the other side reads them; None: there are no more."""
    # the other side is gone, which whoever receives from it finds out; TypeError: this side was closed meanwhile
    with suppress(OSError, TypeError):
        while (message := outbox.get()) is not None:
            connection.send_bytes(message)


def main(pipe: int) -> None:
    """Samples what it is asked for over the pipe of this number, and ends this process when the pipe does."""
    for number in _FOR_THE_RUN:  # which saves, and then closes the pipe
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_RUN)
    connection, inbox, outbox = Connection(pipe), SimpleQueue[bytes](), SimpleQueue["bytes | None"]()
    Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    Thread(target=_send_all, args=(connection, outbox), daemon=True).start()
    try:
        _sample(inbox, outbox)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # threads of libraries would keep it


def _listen(connection: Connection, inbox: "SimpleQueue[bytes]") -> None:
    """Reads all messages, so that the run never waits for this process to be ready for them."""
    with suppress(EOFError, OSError):
        while True:
            inbox.put(connection.recv_bytes())
    os._exit(0)  # the run has ended: nobody waits for what is being sampled


def _sample(inbox: "SimpleQueue[bytes]", outbox: "SimpleQueue[bytes | None]") -> None:
    setting: _Setting = pickle.loads(inbox.get())
    device = torch.device(setting.device)
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index or 0)
    torch.set_num_threads(setting.threads)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = setting.tf32
    policy: Any = pickle.loads(setting.policy)
    torch.manual_seed(seed_from(setting.seed, "initial weights"))
    policy.prepare(Placement(device, setting.dtype))
    while True:
        work: _Work = pickle.loads(inbox.get())
        torch.manual_seed(seed_from(setting.seed, "iteration", work.iteration))  # for a model's own randomness
        _put(policy.weights.parameters, work.weights)
        for request in work.requests:
            outbox.put(_written(_reply(policy, request)))
        del work  # its weights, before the next are read
        if isinstance(policy, Keeping):
            policy.forget()


def _tf32() -> tuple[bool, bool]:
    """Returns whether this process computes products of float32 matrices, and convolutions, in TF32."""
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


class _Pickler(pickle.Pickler):
    """Writes tensors of an accelerator such that they are read onto the one that the reader computes on."""

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, Tensor) and obj.device.type != "cpu":
            return _placed, (obj.cpu(),)
        return NotImplemented


def _placed(tensor: Tensor) -> Tensor:
    return tensor.to(torch.accelerator.current_accelerator() or "cpu")


def _written(found: object) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(found)
    return stream.getvalue()


def _put(parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Overwrites the parameters; where the run computes with roundings of its own, they become of that dtype."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.dtype != weights[name].dtype:
                parameter.data = parameter.data.to(weights[name].dtype)
            parameter.copy_(weights[name])


def _reply(policy: Modality, request: GroupRequest) -> _Reply:
    try:
        return _Reply(roll_out(policy, request.prompts, request.plans, request.keys))
    except ConfigError as error:  # such as prompts that cannot be read: the run finds it too, and says it
        return _Reply(None, refusal=describe(error))
    except Exception as error:  # whatever it is: the run has to hear of it
        traceback.print_exc()
        return _Reply(None, failure=describe(error))
