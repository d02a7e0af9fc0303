"""Runs questions in a child process that may be killed, since the own process cannot be stopped in time.

A computer algebra system cannot be stopped from outside: `9^{9^{9^{9}}}` is one operation of the interpreter, which no
signal or exception of another thread reaches; nor can a regular expression on a worker thread, where scoring runs. So
these run in a child, with limits on its processor time (not on the clock: what a busy machine does must not change
scores) and on its memory.

Run as a program this file is the child: lines of JSON in, one word for each out.
"""

import contextlib
import importlib.util
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

MEMORY = 2 << 30  # bytes of addresses of the child
PATIENCE = 20  # times the limit of processor time by the clock, and a minute: then the machine is at fault
SECOND_TRY = 0.2  # processor seconds after which a child that swallowed the end of its time is interrupted again
FAILED = ("late", "killed")  # words for a question that was too much


class LimitedProcess:
    """A child process that answers questions, with at most `seconds` of processor time for each.

    The child is started at the first question, and again after one that killed it. Usable from any thread.

    Args:
        file: has `answerer(settings)`, the function of a question that gives its answer, a word. It is loaded alone,
            without its package. name: of what it asks, in messages.
    """

    def __init__(self, file: Path, name: str, seconds: float, settings: dict[str, Any]) -> None:
        self.file, self.name, self.settings = file, name, {"seconds": seconds, **settings}
        self.patience = 60 + PATIENCE * seconds
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def ask(self, question: dict[str, Any]) -> str:
        """Returns the answer, a word; one of `FAILED` where time or memory do not suffice.

        Raises RuntimeError where the child does not start, does not answer, or was killed from outside.
        """
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                self._child = self._start()
            assert self._child.stdin is not None
            self._child.stdin.write(json.dumps(question) + "\n")
            self._child.stdin.flush()
            return self._reply(self._child)

    def _start(self) -> "subprocess.Popen[str]":
        # -P: beside this file lie rewards whose names others may have too
        command = [sys.executable, "-P", __file__, str(self.file)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="ascii")
        weakref.finalize(self, _end, child)
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the reply below tells
            child.stdin.write(json.dumps(self.settings) + "\n")
            child.stdin.flush()
        if self._reply(child) != "ready":
            raise RuntimeError(f"{self.name} does not start: its process ended with {child.returncode}")
        return child

    def _reply(self, child: "subprocess.Popen[str]") -> str:
        """Returns one word of the child; "killed" where the question exceeded its limits."""
        assert child.stdout is not None
        if not select.select([child.stdout], [], [], self.patience)[0]:
            _end(child)
            raise RuntimeError(f"{self.name} did not answer within {self.patience:g} seconds")
        word = child.stdout.readline().strip()
        if not word:
            code = child.wait(self.patience)
            _end(child)
            if code == -signal.SIGKILL:
                raise RuntimeError(f"the process of {self.name} was killed from outside, such as for want of memory")
        return word or "killed"


def _end(child: "subprocess.Popen[str]") -> None:
    """Ends a child, if it has not ended yet, and closes its pipes."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # a question that nobody reads any more
            pipe.close()


class _OutOfTime(BaseException):
    """The end of a question's time; no subclass of Exception, which math-verify catches."""


def _raise(signum: int, frame: object) -> None:
    raise _OutOfTime


def _limited(seconds: float, function: Any, *arguments: Any) -> str:
    """Returns the word of the function; "late" where it takes longer. The system ends this process soon after that."""
    import resource

    end = math.ceil(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + seconds + 1)
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (end if most == resource.RLIM_INFINITY else min(end, most), most))
    try:
        try:
            signal.setitimer(signal.ITIMER_PROF, seconds, SECOND_TRY)
            return str(function(*arguments))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except _OutOfTime:
        return "late"


def _answerer(file: str, settings: dict[str, Any]) -> Any:
    spec = importlib.util.spec_from_file_location("asked", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.answerer(settings)


def _serve(file: str) -> None:
    import logging
    import resource

    settings = json.loads(sys.stdin.readline())
    answer = _answerer(file, settings)
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _raise)
    words = os.fdopen(os.dup(1), "w")  # what others print does not get among the words
    os.dup2(2, 1)
    print("ready", file=words, flush=True)
    for line in sys.stdin:
        word = _limited(settings["seconds"], answer, json.loads(line))
        print(word, file=words, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
