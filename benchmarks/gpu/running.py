"""Checks by name and group, one after the other; each gives one line, whatever happens in it."""

import faulthandler
import gc
import importlib
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from .measuring import Measurement, gb, is_installed, significant

MMRL = ("torch", "transformers", "pydantic", "yaml", "accelerate", "PIL", "safetensors")  # what importing mmrl takes
IMAGES = (*MMRL, "diffusers", "peft")
ANSWERS = (*MMRL, "peft", "pyarrow")


@dataclass(frozen=True)
class Check:
    """One check of the suite."""

    name: str
    group: int
    seconds: float  # its budget on a GPU; no case begins when it is spent
    needs: tuple[str, ...]  # modules
    place: str  # module of this package, in which the function has the check's name

    def function(self) -> Callable[[Measurement], None]:
        """Imports and returns the function."""
        return getattr(importlib.import_module(f".{self.place}", __package__), self.name)  # type: ignore[no-any-return]


# The groups are runs of under 8 minutes each.
CHECKS = (
    Check("sd35_rollout", 1, 110, IMAGES, "images"),
    Check("sd35_update", 1, 90, IMAGES, "images"),
    Check("sd35_precision", 1, 60, IMAGES, "images"),
    Check("decode_and_rewards", 1, 55, IMAGES, "decoding"),
    Check("unets", 1, 70, IMAGES, "decoding"),
    Check("every_config_tiny", 1, 75, IMAGES, "systems"),
    Check("decode_7b", 2, 110, ANSWERS, "answers"),
    Check("tower", 2, 40, ANSWERS, "answers"),
    Check("packed_update", 2, 130, ANSWERS, "answers"),
    Check("log_probs", 2, 60, ANSWERS, "answers"),
    Check("runs_tiny_and_resume", 3, 150, IMAGES, "systems"),
    Check("mesh_of_one_and_server", 3, 200, ANSWERS, "systems"),
)
GROUPS = tuple(sorted({check.group for check in CHECKS}))
TINY_SECONDS = 60.0  # budget of a check at small sizes
PATIENCE = 3  # a check that takes so many times its budget is stopped


def chosen(names: Sequence[str], group: int | None) -> list[Check]:
    """Returns the checks of these names, else of a group, else all. Raises ValueError for a name that is none."""
    known = [check.name for check in CHECKS]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no check {name!r}; there are {', '.join(known)}")
    return [c for c in CHECKS if (not names or c.name in names) and (group is None or c.group == group)]


def run(check: Check, *, is_tiny: bool, device: str) -> dict[str, Any]:
    """Runs a check and returns its line; what raises in it is its status."""
    line: dict[str, Any] = {"check": check.name, "group": check.group, "status": "failed"}
    if missing := [module for module in check.needs if not is_installed(module)]:
        why = "not installed; see scripts/gather_wheels.py"
        return line | {"seconds": 0.0, "peak_gb": 0.0, "skipped": dict.fromkeys(missing, why)}
    begin = time.perf_counter()
    measurement = _measurement(check, is_tiny, device)
    try:
        with measurement.counting(), _at_most(0 if is_tiny else PATIENCE * check.seconds):
            check.function()(measurement)
        line["status"] = "failed" if any(not bar["met"] for bar in measurement.bars) else "passed"
        error: dict[str, Any] = {}
    except Exception as raised:  # whatever a machine that was never tried does is a finding
        traceback.print_exc()
        error = {"error": f"{type(raised).__name__}: {raised}"[:1000]}
    line |= {"seconds": significant(time.perf_counter() - begin), "peak_gb": gb(measurement.peak)}
    line |= measurement.figures | ({"bars": measurement.bars} if measurement.bars else {}) | error
    line["skipped"] = measurement.skipped
    _free(measurement)
    return line


def _measurement(check: Check, is_tiny: bool, device: str) -> Measurement:
    import torch

    torch.manual_seed(0)
    place = torch.device(device)
    made = Measurement(
        device=place,
        dtype=torch.float32 if place.type == "cpu" else torch.bfloat16,
        is_tiny=is_tiny,
        budget=TINY_SECONDS if is_tiny else check.seconds,
    )
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        from mmrl.system.live_tensors import LiveTensors

        made.live = LiveTensors()
    return made


def is_lost(device: str) -> bool:
    """Returns whether a kernel broke the device for this process, for good."""
    import torch

    if device != "cuda":
        return False
    try:
        torch.cuda.synchronize()
    except torch.AcceleratorError:
        return True
    return False


def _free(measurement: Measurement) -> None:
    """Frees what a check left, so that the next one begins with an empty device."""
    import torch

    gc.collect()
    if measurement.is_cuda and not is_lost("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the block after so many seconds, and shows on stderr what runs before; 0: never."""
    if not seconds:
        yield
        return
    faulthandler.dump_traceback_later(seconds / PATIENCE, file=sys.__stderr__ or sys.stderr)

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"stopped after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
