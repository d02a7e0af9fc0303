"""The lock of a run directory: at most one process trains in it. Whoever only reads may read beside it."""

import fcntl
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache, partial
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from mmrl.system.errors import ConfigError, RunError

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessId:
    """The identity of a process among all that ever ran on any machine."""

    host: str  # for people
    machine: str  # differs between machines, their restarts, and containers with process numbers of their own
    process: int  # its number there
    start: str | None  # differs between processes that had the number one after the other; None: not known

    @property
    def is_of_this_machine(self) -> bool:
        return self.machine == _this_machine()

    @property
    def is_running(self) -> bool:
        """Returns whether the process still runs; this can be known only of a process of this machine."""
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
    """Returns the identity of the process that calls."""
    return ProcessId(platform.node(), _this_machine(), os.getpid(), _start_of(os.getpid()))


@cache
def _this_machine() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    except OSError:  # no Linux: hosts are distinguished by their names
        return platform.node()


def _start_of(process: int) -> str | None:
    """Returns when a process started, in ticks of the kernel's clock; "ended" for one that only waits for its parent.

    None where the kernel does not know.
    """
    try:
        text = (_PROC / str(process) / "stat").read_text()
    except FileNotFoundError:
        return None if not _PROC.is_dir() else "ended"
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # behind the name, which may hold anything: state is the 3rd of all
    return "ended" if fields[0] in "ZX" else fields[19]


LOCK = "lock.json"  # in the run directory; its time of change is the last renewal
RENEWAL = 10.0  # seconds between two
PATIENCE = 60.0  # seconds without a renewal, after which a lock of another machine is free
_NOBODY = ProcessId("", "", 0, None)


@dataclass(frozen=True)
class Holder:
    """The holder of a lock, as the lock's file names it."""

    who: ProcessId
    since: str  # local time, for people
    folder: str  # the run directory that it locked

    def __str__(self) -> str:
        if self.who == _NOBODY:
            return f"{LOCK} is damaged, so who trains there cannot be known"
        return f"process {self.who.process} on {self.who.host} has trained there since {self.since}"


_HOLDER = TypeAdapter(Holder)


@dataclass
class RunLock:
    """The lock of a run directory, renewed while the block of `held` runs.

    The file names host, process and start time of the holder. The lock of a process that ended is free: at once on the
    same machine, where this can be known; else `PATIENCE` seconds after its last renewal, by the clock of the disk that
    it lies on. A process of this machine that still runs keeps its lock, however long it has been silent.
    """

    folder: Path  # absolute: a reward may change the working folder
    me: ProcessId = field(default_factory=this_process)

    @property
    def path(self) -> Path:
        return self.folder / LOCK

    def take(self) -> None:
        """Writes this process into the lock; does nothing where it stands there already.

        Raises ConfigError, with the holder's name, where another process holds the lock; OSError where the disk fails.
        """
        with _opened(self.path) as handle:
            holder = self._refuse_other(handle)
            if holder is None or holder.who != self.me:
                mine = Holder(self.me, f"{datetime.now():%Y-%m-%d %H:%M:%S}", str(self.folder))
                os.ftruncate(handle, 0)
                os.pwrite(handle, json.dumps(asdict(mine)).encode(), 0)

    def refuse_other(self) -> None:
        """Raises ConfigError, with the holder's name, where another process holds the lock; changes nothing."""
        if self.path.exists():
            with _opened(self.path) as handle:
                self._refuse_other(handle)

    def _refuse_other(self, handle: int) -> Holder | None:
        """Returns the holder: this process, or one whose lock is free. Raises ConfigError for any other."""
        holder, silence = _read(handle), partial(_silence, self.path, handle)
        if holder is not None and holder.who != self.me and not self._is_free(holder, silence):
            silent = f"its last sign of life was {silence():.0f} s ago"
            raise ConfigError(
                f"{self.folder} is in use: {holder}; {silent}. "
                "Wait until it has ended, or stop it first; report, evaluate, sample and export may read beside it"
            )
        return holder

    @contextmanager
    def held(self) -> Iterator["RunLock"]:
        """Takes the lock, renews it every `RENEWAL` seconds, and gives it back at the end. Raises as `take` does."""
        self.take()
        is_over = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(is_over,), name="run lock", daemon=True)
        renewing.start()
        try:
            yield self
        finally:
            is_over.set()
            self.give_back()

    def give_back(self) -> None:
        """Removes the lock where it is this process's own."""
        if self.holder == self.me:
            with suppress(FileNotFoundError):
                self.path.unlink()

    def check(self) -> None:
        """Raises RunError where another process took the lock, as after a night in which this one was suspended.

        To be called before anything is written.
        """
        holder = self.holder
        if holder != self.me:
            by = f"{holder.host}, process {holder.process}, took it" if holder else "its lock was removed or replaced"
            raise RunError(
                f"{self.folder} is no longer this process's own: {by}. It ends here, so that nothing is mixed; "
                f"what was saved before stays"
            )

    @property
    def holder(self) -> ProcessId | None:
        """Returns the holder of the lock; None where there is no lock."""
        with self._for_reading() as handle:
            holder = None if handle is None else _read(handle)
        return None if holder is None else holder.who

    @property
    def is_taken(self) -> bool:
        """Whether another process holds the lock, so that a run still trains.

        Nothing is written: the age of another machine's lock is by this machine's clock.
        """
        with self._for_reading() as handle:
            holder = None if handle is None else _read(handle)
            if handle is None or holder is None or holder.who == self.me:
                return False
            return not self._is_free(holder, lambda: time.time() - os.fstat(handle).st_mtime)

    @contextmanager
    def _for_reading(self) -> Iterator[int | None]:
        """Opens the lock's file; None where there is none, or none that can be read."""
        try:
            handle = os.open(self.path, os.O_RDONLY) if self.path.is_file() else None
        except OSError:
            handle = None
        if handle is None:
            yield None
            return
        try:
            yield handle
        finally:
            os.close(handle)

    def _renew(self, is_over: threading.Event) -> None:
        while not is_over.wait(RENEWAL):
            if self.holder == self.me:
                with suppress(OSError):  # a disk that is away for a moment: `check` raises where it stays away
                    os.utime(self.path)

    def _is_free(self, holder: Holder, silence: Callable[[], float]) -> bool:
        """Returns whether nobody trains there; `silence`: the seconds since another machine renewed its lock."""
        if holder.who.is_of_this_machine:
            return not holder.who.is_running or self._is_copy(holder)
        return silence() > PATIENCE

    def _is_copy(self, holder: Holder) -> bool:
        """Returns whether the lock came with a copy of the run directory, and still stands in the original."""
        original = Path(holder.folder) / LOCK
        return original.exists() and not original.samefile(self.path)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Opens the lock's file, new where there is none, exclusively among processes that take the lock at this moment.

    Raises ConfigError where something else stands in its place.
    """
    while True:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is no plain file, so nobody can be written into it; remove it")
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            with suppress(
                OSError
            ):  # a file system without such locks: two that take a free lock at once may both get it
                fcntl.flock(handle, fcntl.LOCK_EX)
            if not _is_still(path, handle):  # the holder removed it between the two lines above
                continue
            yield handle
            return
        finally:
            os.close(handle)


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _read(handle: int) -> Holder | None:
    """Returns the holder of the lock; None for a new file. A damaged lock has a holder that cannot be identified."""
    content = os.pread(handle, 100_000, 0)
    try:
        return _HOLDER.validate_json(content) if content else None
    except ValidationError:
        return Holder(_NOBODY, "", "")


def _silence(path: Path, handle: int) -> float:
    """Returns the seconds since the lock was renewed, by the clock of its disk: another machine's may be wrong."""
    beside = path.with_name(".tmp-clock")
    beside.touch()
    try:
        return max(0.0, beside.stat().st_mtime - os.fstat(handle).st_mtime)
    finally:
        beside.unlink(missing_ok=True)
