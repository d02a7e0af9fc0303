"""A pretend accelerator: tensors that say they are elsewhere, notes of operations that mix them, and reads of the host.

On a machine with a GPU an operation on tensors of both devices raises. Here the accelerator is torch's device `meta`,
its tensors hold those of the CPU that do the work, and what would raise is noted, with the line of mmrl that asked for
it. As on a GPU, scalars of the CPU mix with all, and what is on the accelerator takes indices of the CPU. A read is an
operation after which the host must wait for the device: a number or a tensor comes back, or a result whose size depends
on values. It is counted by the phase of the run and by the line of mmrl; in a backward pass, with the line of the
library whose operation it is. A copy to the device that the host waits for (without `non_blocking`) is counted apart:
it is cheap, yet it waits for what the device has to do before. Not seen: precision, streams, and what torch decides by
`is_cuda`.
"""

import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mmrl.commands import check
from mmrl.core.config import Plugin, RunConfig, load_config
from mmrl.modalities.tokens.generation import AnswerGenerator
from mmrl.system.errors import ConfigError
from mmrl.training.processes import Processes
from mmrl.training.rollouts import Collector
from mmrl.training.trainer import Trainer
from mmrl.training.update import Updater

DEVICE = torch.device("meta")
_HOST = torch.device("cpu")
_LIBRARIES = ("transformers", "diffusers", "peft", "accelerate")
_LINE = "line of the library"  # that asked for an operation, in the metadata of its node of the graph
_FOLDERS = ("mmrl", "modalities", "rewards", "samplers")
_ROOT = Path(__file__).resolve().parents[1]
_ATEN: Any = torch.ops.aten
_COPIES = (_ATEN._to_copy, _ATEN.copy_, _ATEN.to)  # the last in inference mode, where torch does not take it apart
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
_WAITING = frozenset({*_COPIES, *_INDEXED, *_SIZED, *_READ, _ATEN.repeat_interleave})
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

    def as_subclass(self, kind: type[Tensor]) -> Any:
        """The same as another class of tensors, whose methods come before those here."""
        kind = Remote if kind is Tensor else type(kind.__name__, (kind, Remote), {})
        return kind(self.held)

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

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch's wrapper would cost as much as a small operation; nothing here is compiled

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _dispatched(func, args, kwargs or {})


_FROM_LISTS = frozenset({torch.tensor, torch.as_tensor, Tensor.new_tensor, Tensor.__getitem__, Tensor.__setitem__})


class _Lists(TorchFunctionMode):
    """Lists of numbers become tensors before any operation is asked for: here they are made on the CPU and copied."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _FROM_LISTS:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None and torch.device(device) == DEVICE:
            del kwargs["device"]
            made = func(*map(_numbers, args), **kwargs)
            return made if isinstance(made, Remote) else made.to(DEVICE)
        if func is Tensor.new_tensor and isinstance(args[0], Remote):
            return torch.tensor(args[1], **{"dtype": args[0].dtype, **kwargs, "device": "cpu"}).to(DEVICE)
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Remote):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            own = tuple(torch.tensor(one).to(DEVICE) if isinstance(one, list) and one else one for one in index)
            args = (args[0], own if isinstance(args[1], tuple) else own[0], *args[2:])
            found = func(*args, **kwargs)
            if any(isinstance(one, Remote) and one.dtype == torch.bool for one in own):
                _remember_line(found if func is Tensor.__getitem__ else args[0])
            # a part of a tensor of another kind is of that kind, as torch has it
            is_of_kind = func is Tensor.__getitem__ and type(args[0]) is not Remote and type(found) is Remote
            return found.as_subclass(type(args[0])) if is_of_kind else found
        elif func in (torch.tensor, torch.as_tensor):
            args = tuple(map(_numbers, args))
        return func(*args, **kwargs)


def _numbers(value: Any) -> Any:
    """A list with numbers in the place of tensors of the device, each of which is read; all else as it is."""
    if not isinstance(value, list | tuple):
        return value
    return type(value)([one.tolist() if isinstance(one, Remote) else _numbers(one) for one in value])


def _dispatched(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operation gives, on the device where a GPU would have it."""
    operands: list[Tensor] = []
    own_args = [_held(value, operands) for value in args]
    own_kwargs = {key: _held(value, operands) for key, value in kwargs.items()}
    remote = [operand for operand in operands if isinstance(operand, Remote)]
    device = kwargs.get("device")
    if not remote and (device != DEVICE or any(operand.device == DEVICE for operand in operands)):
        return func(*args, **kwargs)  # of the CPU; or of libraries that ask for shapes alone
    name = func.overloadpacket
    if len(remote) < len(operands) and name not in _COPIES and _is_mixed(name, args, operands):
        Remote.notes.mixes[f"{func} at {_asking()}"] += 1
    if name in _WAITING and _is_read(name, args, kwargs, device):
        _note(Remote.notes.syncs)
    elif name in _COPIES and _is_awaited_copy(name, args, kwargs, device):
        _note(Remote.notes.copies)
    if device == DEVICE:
        own_kwargs["device"] = _HOST
    found = func(*own_args, **own_kwargs)
    if name is _ATEN.copy_:
        return args[0]
    is_remote = bool(remote) if device is None else device == DEVICE
    return _there(found, remote) if is_remote else found


def _held(value: Any, operands: list[Tensor]) -> Any:
    """A value with the CPU's tensors in it; all tensors that it has are added to `operands`."""
    kind = type(value)
    if kind is Remote or isinstance(value, Remote):
        operands.append(value)
        return value.held
    if kind in (list, tuple):
        if value and type(value[0]) is int:  # a shape
            return value
        return kind([_held(one, operands) for one in value])
    if isinstance(value, Tensor):
        operands.append(value)
    return value


def _there(value: Any, remote: Sequence[Remote]) -> Any:
    """A result with its tensors on the device: of the operands those that it changed."""
    if isinstance(value, Tensor):
        for operand in remote:
            if operand.held is value:  # in place
                return operand
        return Remote(value)
    return type(value)([_there(one, remote) for one in value]) if isinstance(value, list | tuple) else value


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
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner, path = _file(frame.f_code.co_filename)
        if owner == "mmrl":
            file, line = frame.f_code.co_filename, frame.f_lineno
            text = linecache.getline(file, line).strip()
            if not called and any(name in text for name in ("backward(", "autograd.grad(")):
                called = _line_ahead()
            return f"{path}:{line}: {text}{called}"
        if owner and not called:
            called = f" [in {path}:{frame.f_lineno}]"
        frame = frame.f_back
    return f"no line of mmrl{called}"


def _line_ahead() -> str:
    """The library's line whose operation the backward pass is at; empty for an operation of mmrl's."""
    node: Any = torch._C._current_autograd_node()
    line: str = "" if node is None else node.metadata.get(_LINE, "")
    return line.replace("]", ", backwards]")


def _remember_line(indexed: Tensor) -> None:
    """Keeps the library's line that indexes by a mask, whose backward pass is a read as well."""
    node: Any = indexed.grad_fn
    _, start, line = _asking().partition(" [in ")
    if node is not None:
        node.metadata[_LINE] = start + line


@cache
def _file(name: str) -> tuple[str, str]:
    """Whose a source file is, `mmrl`, `library` or empty for others, and its path there."""
    file = Path(name)
    if file.is_relative_to(_ROOT) and file.relative_to(_ROOT).parts[0] in _FOLDERS:
        return "mmrl", str(file.relative_to(_ROOT))
    library = next((part for part in file.parts if part in _LIBRARIES), None)
    return ("", "") if library is None else ("library", "/".join(file.parts[file.parts.index(library) :]))


class _NoAutocast:
    """In the place of `torch.autocast`, which knows no device of this name."""

    def __new__(cls, device_type: str, *given: Any, **settings: Any) -> Any:
        return nullcontext() if device_type == DEVICE.type else _AUTOCAST(device_type, *given, **settings)


_AUTOCAST: Any = torch.autocast
_IS_AUTOCAST_ENABLED: Callable[..., bool] = torch.is_autocast_enabled


# the method of a class, the phase in it (None: that of its caller), and what one call of it is counted as
PHASES: list[tuple[Any, str, str | None, str]] = [
    (Trainer, "_iterate", "iteration", "iteration"),
    (Collector, "__call__", "rollout", ""),
    (AnswerGenerator, "generate", "decoding", "batch of answers"),
    (AnswerGenerator, "_sample", None, "decoded step"),
    (AnswerGenerator, "_read", None, "block of steps"),
    (Updater, "_learn", "micro-batch", "micro-batch"),
    (Updater, "_measure", "micro-batch", ""),
    (Updater, "_learn_in_two_passes", "micro-batch", "micro-batches"),
    (Updater, "_forward", None, "forward pass"),
]


def _in_phase(method: Callable[..., Any], phase: str | None, unit: str) -> Callable[..., Any]:
    @wraps(method)
    def counted(*given: Any, **settings: Any) -> Any:
        notes = Remote.notes
        if unit == "micro-batches":  # of a loss that sees them all before it learns from each
            notes.units["micro-batch"] += len(given[2])
        elif unit:
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
        patch.setattr(Thread, "run", _run_with_modes)
        patch.setattr(torch, "autocast", _NoAutocast)
        patch.setattr(torch, "is_autocast_enabled", is_autocast_enabled)
        if (pipelines := sys.modules.get("diffusers.pipelines.pipeline_utils")) is not None:
            patch.setattr(pipelines.DiffusionPipeline, "device", _device_of_pipeline(pipelines.DiffusionPipeline))
        try:
            yield Remote.notes
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swaps)


def _device_of_pipeline(kind: Any) -> property:
    """The property `device` of diffusers' pipelines, which prefers an accelerator, and takes `meta` for none."""
    stock = kind.device.fget

    def device(pipeline: Any) -> torch.device:
        parts = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
        return DEVICE if any(part.device == DEVICE for part in parts) else stock(pipeline)

    return property(device)


_RUN: Callable[[Thread], None] = Thread.run


def _run_with_modes(thread: Thread) -> None:
    """Runs a thread, which begins without torch's modes: of a paused pipeline, of rewards scored beside sampling."""
    with _Lists(), _Operations():  # type: ignore[no-untyped-call]  # of torch
        _RUN(thread)


NUM_STEPS, NUM_TOKENS = 4, 17  # of a sample and an answer at most: 17 tokens are two blocks
_SHORT: Callable[[Plugin], Plugin] = check.shortened_sampler


def tiny_run(config: str, *overrides: str) -> tuple[bool, Notes]:
    """Whether `check --tiny` of a config is content on the pretend accelerator, and what was noted.

    Samples are fewer and shorter than those of `check --tiny`, for every operation goes by way of Python: groups of
    two, answers of 17 tokens, four denoising steps where the sampler allows them, one held-out evaluation of one
    prompt. What runs on the CPU on a machine with a GPU too is left out: the making of twins, and the proof of a
    policy.
    """
    settings = load_config(config, ["precision=float32", "threads=1", *overrides])
    for sizes in ({"TINY_GROUP_SIZE": 2, "shortened_sampler": _short}, {"TINY_GROUP_SIZE": 2}):
        with suppress(ConfigError):  # of a sampler that needs all its steps, an advantage that needs larger groups
            return _tiny_run(settings, sizes)
    return _tiny_run(settings, {})


def _tiny_run(settings: RunConfig, sizes: Mapping[str, Any]) -> tuple[bool, Notes]:
    notes = [Notes()]
    tried = check._tried

    def tried_there(*given: Any, **named: Any) -> dict[str, Any]:
        with pretended() as notes[0]:
            return tried(*given, **named)

    own = {"_tried": tried_there, "_proof": lambda twins: {}, "TINY_EVALUATED": 1, "TINY_TOKENS": NUM_TOKENS, **sizes}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setattr(check, name, value)
        patch.setattr(Trainer, "_awaits_evaluation", _awaits_last_evaluation)
        found = check.check_tiny(settings)
    return bool(found["is_good"]), notes[0]


def _short(sampler: Plugin) -> Plugin:
    """A sampler's settings with few tokens and steps; of a list of noise levels the first few and the last."""
    short, num_steps, sigmas = dict(_SHORT(sampler)), sampler.get("num_steps"), sampler.get("sigmas")
    if isinstance(num_steps, int) and num_steps > NUM_STEPS:
        short["num_steps"] = NUM_STEPS
        if isinstance(sigmas, list | tuple):
            short["sigmas"] = [*sigmas[:NUM_STEPS], sigmas[-1]]
        if isinstance(window := sampler.get("window"), dict):
            short["window"] = {
                key: min(value, NUM_STEPS) if isinstance(value, int) else value for key, value in window.items()
            }
    return short


def _awaits_last_evaluation(trainer: Trainer, is_done: bool) -> bool:
    return is_done and trainer.evaluator is not None and trainer.progress.evaluated != trainer.progress.iteration
