"""This process and this machine, told apart from all others; and whether another process of this machine still runs."""

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessId:
    """One process among all that ever ran anywhere."""

    host: str  # for people
    machine: str  # differs between machines, their restarts, and containers with process numbers of their own
    process: int  # its number there
    start: str | None  # differs between processes that had the number one after the other; None: not known

    @property
    def is_of_this_machine(self) -> bool:
        return self.machine == _this_machine()

    @property
    def is_running(self) -> bool:
        """Whether it still runs; only of a process of this machine can this be known."""
        assert self.is_of_this_machine, "nobody here knows"
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's
            pass
        except OverflowError:  # no process has such a number
            return False
        return self.start is None or _start_of(self.process) == self.start


def this_process() -> ProcessId:
    """Returns the process that calls."""
    return ProcessId(platform.node(), _this_machine(), os.getpid(), _start_of(os.getpid()))


@cache
def _this_machine() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    except OSError:  # no Linux: hosts are told apart by their names
        return platform.node()


def _start_of(process: int) -> str | None:
    """When a process started, in ticks of the kernel's clock; "ended" for one that waits for its parent alone.

    None where the kernel does not say.
    """
    try:
        text = (_PROC / str(process) / "stat").read_text()
    except FileNotFoundError:
        return None if not _PROC.is_dir() else "ended"
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # behind the name, which may hold anything: state is the 3rd of all
    return "ended" if fields[0] in "ZX" else fields[19]
