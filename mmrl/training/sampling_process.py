"""A process that samples the rollouts of the next iteration with a network of its own, while this one learns."""

import io
import os
import pickle
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Modality, Placement, RunError
from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import GroupKey, seed_from
from mmrl.plans.groups import GroupPlan
from mmrl.plans.offline import roll_out

_PATIENCE = 20.0  # seconds that its end may take


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
    tf32: bool


@dataclass
class SamplingProcess:
    """Another process with the policy's network on a device of its own, which samples by the weights that it is sent.

    One rollout at a time is sampled ahead, in as many requests as the policy is called with; each is taken once.
    """

    device: str  # of torch
    num_taken: int = field(default=0, init=False)  # samples so far
    sampled_by: Mapping[str, Tensor] = field(default_factory=dict, init=False)  # the weights that were sent last
    _waiting: list[tuple[GroupKey, ...]] = field(default_factory=list, init=False)  # of the requests under way
    _connection: Connection = field(init=False, repr=False)
    _process: "subprocess.Popen[bytes]" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Starts the process; `load` gives it the policy."""
        ours, theirs = socket.socketpair()
        # not by -m: what it pickles must be of this module, not of its main one
        command = [sys.executable, "-c", f"from {__name__} import main; main({theirs.fileno()})"]
        # a session of its own: Ctrl-C in the terminal is for the run, which ends the process in good time
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        finalize(self, _end, self._connection, self._process)

    def load(self, policy: Modality, dtype: torch.dtype, seed: int) -> None:
        """Lets it begin to load the policy, which must not be prepared yet; returns at once.

        Raises ConfigError where the policy cannot be given to another process.
        """
        try:
            content = pickle.dumps(policy)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(f"rollout.devices: the policy cannot be given to another process: {error}") from error
        self._send(_Setting(content, self.device, dtype, seed, torch.get_num_threads(), _tf32()))

    def begin(self, weights: Mapping[str, Tensor], requests: Sequence[GroupRequest]) -> None:
        """Lets it sample by these trained tensors, in the place of what was not taken; returns at once."""
        self._settle()
        self.sampled_by = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights.items()}
        self._send((dict(self.sampled_by), requests))
        self._waiting = [request.keys for request in requests]

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

    def _settle(self) -> None:
        """Waits for all that is under way, and drops it."""
        while self._waiting:
            self._receive()

    def _receive(self) -> Rollout | None:
        self._waiting.pop(0)
        try:
            found, why = _read(self._connection)
        except (EOFError, OSError) as error:
            raise self._lost() from error
        if why is not None:
            raise RunError(f"the process that samples ahead on {self.device} (rollout.devices) failed: {why}")
        return found  # type: ignore[no-any-return]

    def _send(self, message: object) -> None:
        try:
            self._connection.send_bytes(_written(message))
        except OSError as error:
            raise self._lost() from error

    def _lost(self) -> RunError:
        self._waiting = []
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        code = self._process.poll()
        return RunError(
            f"the process that samples ahead on {self.device} (rollout.devices) ended, with exit code {code}; its own "
            "words are above"
        )


def _end(connection: Connection, process: "subprocess.Popen[bytes]") -> None:
    connection.close()
    try:
        process.wait(_PATIENCE if process.poll() is None else 0)
    except subprocess.TimeoutExpired:  # in the middle of a rollout
        process.kill()
        process.wait()


def main(pipe: int) -> None:
    """Samples what it is asked for over the pipe of this number, and ends this process when the pipe does."""
    code = 0
    try:
        _work(Connection(pipe))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the run has ended
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)  # threads of libraries would keep it


def _work(connection: Connection) -> None:
    setting: _Setting = _read(connection)
    device = torch.device(setting.device)
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index or 0)
    torch.set_num_threads(setting.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = setting.tf32
    policy: Any = pickle.loads(setting.policy)
    torch.manual_seed(seed_from(setting.seed, "initial weights"))
    policy.prepare(Placement(device, setting.dtype))
    while True:
        weights, requests = _read(connection)
        _put(policy.weights.parameters, weights)
        for request in requests:
            connection.send_bytes(_answer(policy, request))


def _tf32() -> bool:
    """Returns whether this process computes products of float32 numbers in TF32."""
    return bool(torch.backends.cuda.matmul.allow_tf32)


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


def _read(connection: Connection) -> Any:
    return pickle.loads(connection.recv_bytes())


def _put(parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in parameters.items():
            tensor.copy_(weights[name])


def _answer(policy: Modality, request: GroupRequest) -> bytes:
    """Returns the rollout, or why there is none; both None for prompts that cannot be read, which the run says."""
    try:
        return _written((roll_out(policy, request.prompts, request.plans, request.keys).on_host(), None))
    except ConfigError:
        return _written((None, None))
    except Exception as error:  # whatever it is: the run has to hear of it
        traceback.print_exc()
        return _written((None, f"{type(error).__name__}: {error}"))
