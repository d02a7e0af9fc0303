"""What a check measures with: seconds, live tensors, operations, host reads, FLOPs, identities and bars."""

import gc
import math
import os
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmrl.system.out_of_memory import OutOfMemory

# Dense bf16 matrix products, TFLOP/s, by a part of the device's name; the first that fits. From NVIDIA's data sheets:
# H100 SXM and H200 989, H100 PCIe 756, A100 312, L40S 362; RTX 4090 165 (Ada architecture white paper, appendix A).
PEAK_TFLOPS = {"H200": 989.0, "H100 PCIe": 756.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "4090": 165.0}
_VIEWS = ("view", "reshape", "transpose", "permute", "expand", "slice", "select", "split", "unsqueeze", "squeeze", "t",
          "detach", "alias", "unbind", "as_strided", "chunk", "empty", "_unsafe_view", "lift_fresh")  # fmt: skip
_HANDED = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_unique2", "item")


# Kinds of kernels by their names; the first that fits.
KERNELS = {
    "attention": "flash|fmha|attention|sdpa|flex",
    "matrix products": "gemm|nvjet|cutlass|xmma|gemv|splitK",
    "convolutions": "conv|cudnn|wgrad|dgrad|implicit",
    "compiled": "triton",
    "copies": "copy|Memcpy|Memset|CatArray|fill",
    "sums and norms": "reduce|norm|softmax|scan",
    "elementwise": "elementwise|vectorized|unrolled",
}


class BrokenIdentity(AssertionError):
    """Two numbers that must agree do not, or a bar is not met."""


def peak_tflops(name: str) -> float | None:
    """Returns the dense bf16 TFLOP/s of a device by its name; None for one that is not in the table."""
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)


class Operations(TorchDispatchMode):
    """Counts operations that compute, and those that hand a value to the host; views and empty tensors count nothing.

    On a GPU an operation is one kernel or more, and a read waits for the device.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.computed = self.reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[-1]
        if name in _HANDED:
            self.reads += 1
        elif name not in _VIEWS:
            self.computed += 1
        return func(*args, **(kwargs or {}))


@dataclass
class Measurement:
    """One check as it runs: the device, the time that is left, and the figures so far."""

    device: torch.device
    dtype: torch.dtype
    is_tiny: bool
    budget: float  # seconds
    figures: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    bars: list[dict[str, Any]] = field(default_factory=list)
    start: float = field(default_factory=time.perf_counter)
    live: Any = None  # counts live tensors where the device does not
    highest: int = 0  # bytes, before the counter was last set back
    has_begun: bool = False  # a case did

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def left(self) -> float:
        """Returns the seconds that are left of the budget."""
        return self.budget - (time.perf_counter() - self.start)

    def has_time(self, case: str, seconds: float = 0.0) -> bool:
        """Returns whether a case that takes so many seconds may begin; names it among the skipped otherwise.

        The first may always: on a busy machine imports and weights alone can take the budget, and a check without a
        case says nothing.
        """
        if self.left > seconds or not self.has_begun:
            self.has_begun = True
            return True
        self.skipped[case] = f"the check's {self.budget:.0f} s were spent"
        return False

    def on_cuda(self, case: str) -> bool:
        """Returns whether a case that needs CUDA can run; names it among the skipped otherwise."""
        if self.is_cuda:
            return True
        self.skipped[case] = f"needs CUDA, the device is {self.device.type}"
        return False

    @contextmanager
    def may_lack_memory(self, case: str) -> Iterator[None]:
        """Names a case among the skipped where the device's memory is too small for it."""
        try:
            yield
        except (torch.OutOfMemoryError, OutOfMemory) as error:
            self.skipped[case] = f"out of memory: {str(error).splitlines()[0][:200]}"
            for one in (error, error.__cause__):  # frames hold what the case had in memory
                traceback.clear_frames(None if one is None else one.__traceback__)
            gc.collect()
            torch.cuda.empty_cache()

    def synchronise(self) -> None:
        """Waits for the device."""
        if self.is_cuda:
            torch.cuda.synchronize()

    def seconds(self, function: Callable[[], Any], repeats: int = 1, warm: int = 1) -> float:
        """Returns the seconds of one call, the mean of `repeats` after `warm` calls that are not counted."""
        for _ in range(warm):
            function()
        self.synchronise()
        begin = time.perf_counter()
        for _ in range(repeats):
            function()
        self.synchronise()
        return (time.perf_counter() - begin) / repeats

    def kernels(self, function: Callable[[], Any]) -> dict[str, float]:
        """Returns the shares of a GPU's busy time in one call, by kind of kernel, and `idle`: of the call's time."""
        from torch.profiler import ProfilerActivity, profile

        seconds = self.seconds(function)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            function()
            self.synchronise()
        found = dict[str, float]()
        for event in profiled.key_averages():
            if event.self_device_time_total:
                found[kernel(event.key)] = found.get(kernel(event.key), 0.0) + event.self_device_time_total / 1e6
        busy = sum(found.values())
        shares = {kind: significant(spent / busy, 3) for kind, spent in sorted(found.items(), key=lambda one: -one[1])}
        return {**shares, "idle": significant(max(0.0, 1 - busy / seconds), 3)}

    # memory

    @property
    def allocated(self) -> int:
        """Returns the bytes of live tensors now."""
        return torch.cuda.memory_allocated() if self.is_cuda else int(self.live.now if self.live is not None else 0)

    @property
    def _peak(self) -> int:
        return torch.cuda.max_memory_allocated() if self.is_cuda else int(self.live.peak if self.live else 0)

    @property
    def peak(self) -> int:
        """Returns the most bytes of live tensors since the check began."""
        return max(self.highest, self._peak)

    def begin_peak(self) -> None:
        """Begins to count a peak of its own."""
        self.highest = self.peak
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats()
        elif self.live is not None:
            self.live.peak = self.live.now

    def end_peak(self) -> float:
        """Returns the peak since `begin_peak`, in GB."""
        return gb(self._peak)

    def counting(self) -> AbstractContextManager[Any]:
        """Returns a context that counts live tensors where the device does not; for threads and blocks of their own."""
        return nullcontext() if self.live is None else self.live

    # figures

    def identity(self, name: str, value: float, most: float) -> float:
        """Notes a number that is at most `most` if the code is right. Raises BrokenIdentity where it is not."""
        self.figures[name] = significant(value)
        if not value <= most:  # NaN as well
            raise BrokenIdentity(f"{name} is {value:.4g}, and at most {most:.4g} is right")
        return value

    def at_least(self, name: str, value: float, bar: float) -> None:
        """Notes a figure with a bar that holds on GPUs at real size."""
        self._bar(name, value, bar, value >= bar, "at least")

    def at_most(self, name: str, value: float, bar: float) -> None:
        """Notes a figure with a bar that holds on GPUs at real size."""
        self._bar(name, value, bar, value <= bar, "at most")

    def _bar(self, name: str, value: float, bar: float, is_met: bool, word: str) -> None:
        if self.is_cuda and not self.is_tiny:
            self.bars.append({"figure": name, "value": significant(value), "bar": f"{word} {bar:g}", "met": is_met})

    def mfu(self, flops: float, seconds: float) -> float | None:
        """Returns the share of the device's dense bf16 peak; None for a device whose peak is not known."""
        if not self.is_cuda:
            return None
        peak = peak_tflops(torch.cuda.get_device_name())
        return None if peak is None else significant(flops / seconds / peak / 1e12)

    @contextmanager
    def counting_syncs(self) -> Iterator[list[int]]:
        """Yields a list whose first number is, in the end, the host's waits for the device in the block.

        On a GPU torch reports each; elsewhere these are the operations that hand a value to the host.
        """
        found = [0]
        if not self.is_cuda:
            with Operations() as operations:
                yield found
            found[0] = operations.reads
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield found
            finally:
                torch.cuda.set_sync_debug_mode("default")
        found[0] = sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)


def kernel(name: str) -> str:
    """Returns the kind of a kernel by its name."""
    return next((kind for kind, part in KERNELS.items() if re.search(part, name, re.IGNORECASE)), "others")


def flops_of(function: Callable[[], Any]) -> int:
    """Returns the FLOPs of matrix products, convolutions and attention in one call, a multiply-add as two.

    torch's counter keeps the activations of the whole call in memory: count a small part, and multiply.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        function()
    return int(counter.get_total_flops())


def gb(size: float) -> float:
    """Returns bytes as decimal GB."""
    return significant(size / 1e9, 4)


def significant(value: float, digits: int = 4) -> float:
    """Returns a number with so many significant digits."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else value


def cosine(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    """Returns the cosine of two lists of tensors as one vector each, summed in float64."""
    products = [(a.double() * b.double()).sum() for a, b in zip(first, second, strict=True)]
    norms = [sum(float(t.double().square().sum()) for t in side) ** 0.5 for side in (first, second)]
    return float(sum(float(one) for one in products) / max(norms[0] * norms[1], 1e-300))


def is_installed(module: str) -> bool:
    """Returns whether a module can be imported, without importing it."""
    from importlib.util import find_spec

    return find_spec(module) is not None


def processors() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))
