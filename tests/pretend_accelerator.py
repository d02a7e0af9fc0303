"""A pretend accelerator: tensors that say they are elsewhere, notes of operations that mix them, and reads of the host.

On a machine with a GPU an operation on tensors of both devices raises. Here the accelerator is torch's device `meta`,
its tensors hold those of the CPU that do the work, and what would raise is noted, with the line of mmrl that asked for
it. As on a GPU, scalars of the CPU mix with all, and what is on the accelerator takes indices of the CPU. A read is an
operation after which the host must wait for the device: a number or a tensor comes back, or a result whose size depends
on values. It is counted by the phase of the run and by the line of mmrl. A copy to the device that the host waits for
(without `non_blocking`) is counted apart: it is cheap, yet it waits for what the device has to do before. Not seen:
tensors that other threads make (`scoring.overlap`), precision, streams, and what torch decides by `is_cuda`.
"""

import linecache
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from mmrl.commands.check import check_tiny
from mmrl.core.config import load_config
from mmrl.modalities.tokens.generation import AnswerGenerator
from mmrl.training.processes import Processes
from mmrl.training.trainer import Trainer
from mmrl.training.update import Updater

DEVICE = torch.device("meta")
_LIBRARIES = ("transformers", "diffusers", "peft", "accelerate")
_FOLDERS = ("mmrl", "modalities", "rewards", "samplers")
_ROOT = Path(__file__).resolve().parents[1]
_ATEN: Any = torch.ops.aten
_COPIES = (_ATEN._to_copy, _ATEN.copy_)
_INDEXED = (_ATEN.index, _ATEN._unsafe_index, _ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_)


# the results of these are as large as values say, so the host waits for them
_SIZED = (
    _ATEN.nonzero,
    _ATEN.masked_select,
    _ATEN._unique2,
    _ATEN.unique_dim,
    _ATEN.unique_consecutive,
    _ATEN.bincount,
)
_READ = (_ATEN._local_scalar_dense, _ATEN.equal)
Place = tuple[str, str]  # a phase of the run, and a line


@dataclass
class Notes:
    """What was noted of a run: each place with how often it was there."""

    mixes: Counter[str] = field(default_factory=Counter)  # operations that mixed devices, and where
    syncs: Counter[Place] = field(default_factory=Counter)  # reads of the host
    copies: Counter[Place] = field(default_factory=Counter)  # to the device, the host waiting
    units: Counter[str] = field(default_factory=Counter)  # iterations, batches of answers, decoded steps, micro-batches
    phases: list[str] = field(default_factory=lambda: ["elsewhere"])  # the last is the one that runs

    def count(self, kind: str, phase: str) -> int:
        """Returns the number of `syncs` or `copies` in a phase."""
        counter = self.syncs if kind == "syncs" else self.copies
        return sum(number for (own, _), number in counter.items() if own == phase)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts what is in the block to this phase."""
        self.phases.append(name)
        try:
            yield
        finally:
            self.phases.pop()


class Remote(Tensor):
    """A tensor on the pretend accelerator."""

    notes: ClassVar[Notes] = Notes()  # of the run in progress
    held: Tensor  # the same on the CPU

    @staticmethod
    def __new__(cls, held: Tensor, requires_grad: bool = False) -> "Remote":
        made: Remote = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
            requires_grad=requires_grad,
        )
        made.held = held
        return made

    def tolist(self) -> Any:
        _note(Remote.notes.syncs)
        return self.held.tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # an untyped one
        return f"Remote({self.held!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = Remote(self.held.clone(), self.requires_grad)
        is_parameter = isinstance(self, torch.nn.Parameter)
        return torch.nn.Parameter(copied, requires_grad=self.requires_grad) if is_parameter else copied

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's has no types
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _dispatched(func, args, kwargs or {})


class _Operations(TorchDispatchMode):
    """Sends operations that make tensors on the device through the same place."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _dispatched(func, args, kwargs or {})


class _Lists(TorchFunctionMode):
    """Lists of numbers become tensors before any operation is asked for: here they are made on the CPU and copied."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None and torch.device(device) == DEVICE:
            del kwargs["device"]
            made = func(*args, **kwargs)
            return made if isinstance(made, Remote) else made.to(DEVICE)
        if func is Tensor.new_tensor and isinstance(args[0], Remote):
            return torch.tensor(args[1], **{"dtype": args[0].dtype, **kwargs, "device": "cpu"}).to(DEVICE)
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Remote):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            own = tuple(torch.tensor(one).to(DEVICE) if isinstance(one, list) and one else one for one in index)
            args = (args[0], own if isinstance(args[1], tuple) else own[0], *args[2:])
        return func(*args, **kwargs)


def _dispatched(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operation gives, on the device where a GPU would have it."""
    operands = [operand for operand in tree_flatten((args, kwargs))[0] if isinstance(operand, Tensor)]
    remote = [operand for operand in operands if isinstance(operand, Remote)]
    if not remote and any(operand.device == DEVICE for operand in operands):  # of libraries that ask for shapes alone
        return func(*args, **kwargs)
    device = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    name = func.overloadpacket
    if remote and name not in _COPIES and _is_mixed(name, args, operands):
        Remote.notes.mixes[f"{func} at {_asking()}"] += 1
    if _is_read(name, args, kwargs, device):
        _note(Remote.notes.syncs)
    elif _is_awaited_copy(name, args, kwargs, device):
        _note(Remote.notes.copies)
    own_kwargs = dict(kwargs) | ({"device": torch.device("cpu")} if device == DEVICE else {})
    found = func(*tree_map(_held, args), **tree_map(_held, own_kwargs))
    if name is _ATEN.copy_:
        return args[0]
    is_remote = bool(remote) if device is None else device == DEVICE

    def there(value: Any) -> Any:
        if not isinstance(value, Tensor) or not is_remote:
            return value
        changed = next((operand for operand in remote if operand.held is value), None)  # in place
        return Remote(value) if changed is None else changed

    return tree_map(there, found)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, Remote) else value


def _is_mixed(name: Any, args: Sequence[Any], operands: Sequence[Tensor]) -> bool:
    if name not in _INDEXED:
        return any(not isinstance(operand, Remote) and operand.dim() > 0 for operand in operands)
    table, indices, *values = args
    if isinstance(table, Remote):
        return any(not isinstance(one, Remote) and one.dim() > 0 for one in values if isinstance(one, Tensor))
    return any(isinstance(one, Remote) for one in [*indices, *values])


def _is_read(name: Any, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device | None) -> bool:
    """Whether the host waits for what an operation gives."""
    if name is _ATEN._to_copy:
        return isinstance(args[0], Remote) and device is not None and device != DEVICE
    if name is _ATEN.copy_:
        return isinstance(args[1], Remote) and not isinstance(args[0], Remote)
    if name is _ATEN.repeat_interleave:
        return isinstance(args[0], Remote) and kwargs.get("output_size") is None
    if name in _INDEXED and isinstance(args[0], Remote):
        masks = [one for one in args[1] if isinstance(one, Remote) and one.dtype == torch.bool]
        is_filled = len(args) > 2 and args[2].numel() == 1  # torch fills such a mask with one number
        return bool(masks) and not (is_filled and len(masks) == len(args[1]))
    return name in (*_READ, *_SIZED) and any(isinstance(one, Remote) for one in args)


def _is_awaited_copy(name: Any, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device | None) -> bool:
    """Whether an operation copies to the device, and the host waits until it is done."""
    if name is _ATEN._to_copy:
        return not isinstance(args[0], Remote) and device == DEVICE and not kwargs.get("non_blocking")
    if name is _ATEN.copy_:
        return isinstance(args[0], Remote) and not isinstance(args[1], Remote) and not (len(args) > 2 and args[2])
    return False


def _note(counter: Counter[Place]) -> None:
    counter[Remote.notes.phases[-1], _asking()] += 1


def _asking() -> str:
    """The last line of mmrl on the way to here, and the line of the library that it called, if any."""
    called = ""
    for frame, line in traceback.walk_stack(None):
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(_ROOT) and file.relative_to(_ROOT).parts[0] in _FOLDERS:
            return f"{file.relative_to(_ROOT)}:{line}: {linecache.getline(str(file), line).strip()}{called}"
        library = next((part for part in file.parts if part in _LIBRARIES), None)
        if library is not None and not called:
            called = f" [in {'/'.join(file.parts[file.parts.index(library) :])}:{line}]"
    return f"no line of mmrl{called}"


class _NoAutocast:
    """In the place of `torch.autocast`, which knows no device of this name."""

    def __new__(cls, device_type: str, *given: Any, **settings: Any) -> Any:
        return nullcontext() if device_type == DEVICE.type else _AUTOCAST(device_type, *given, **settings)


_AUTOCAST: Any = torch.autocast
_IS_AUTOCAST_ENABLED: Callable[..., bool] = torch.is_autocast_enabled


# the method of a class, the phase in it (None: that of its caller), and what one call of it is counted as
PHASES: list[tuple[Any, str, str | None, str]] = [
    (Trainer, "_iterate", "iteration", "iteration"),
    (AnswerGenerator, "generate", "decoding", "batch of answers"),
    (AnswerGenerator, "_sample", None, "decoded step"),
    (AnswerGenerator, "_read", None, "block of steps"),
    (Updater, "_learn", "micro-batch", "micro-batch"),
    (Updater, "_learn_in_two_passes", "micro-batch", ""),
    (Updater, "_forward", None, "forward pass"),
]


def _in_phase(method: Callable[..., Any], phase: str | None, unit: str) -> Callable[..., Any]:
    @wraps(method)
    def counted(*given: Any, **settings: Any) -> Any:
        notes = Remote.notes
        if unit:
            notes.units[unit] += 1
        if phase is None:
            return method(*given, **settings)
        with notes.phase(phase):
            return method(*given, **settings)

    return counted


@contextmanager
def pretended() -> Iterator[Notes]:
    """Runs of mmrl take the pretend accelerator for this machine's; gives what is noted in the block."""
    made = Processes.__init__

    def elsewhere(engine: Processes, *given: Any, **settings: Any) -> None:
        made(engine, *given, **settings)
        engine.placement = replace(engine.placement, device=DEVICE)

    def is_autocast_enabled(*given: Any) -> bool:
        return not (given and given[0] == DEVICE.type) and _IS_AUTOCAST_ENABLED(*given)

    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # the other way keeps a tensor's class
    with pytest.MonkeyPatch.context() as patch, _Lists(), _Operations():  # type: ignore[no-untyped-call]  # of torch
        patch.setattr(Remote, "notes", Notes())
        for owner, method, phase, unit in PHASES:
            patch.setattr(owner, method, _in_phase(getattr(owner, method), phase, unit))
        patch.setattr(Processes, "__init__", elsewhere)
        patch.setattr(torch, "autocast", _NoAutocast)
        patch.setattr(torch, "is_autocast_enabled", is_autocast_enabled)
        try:
            yield Remote.notes
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swaps)


def tiny_run(config: str, *overrides: str) -> tuple[bool, Notes]:
    """Whether `check --tiny` of a config is content on the pretend accelerator, and what was noted."""
    settings = load_config(config, ["precision=float32", "scoring.overlap=false", "threads=1", *overrides])
    with pretended() as notes:
        found = check_tiny(settings)
    return bool(found["is_good"]), notes
