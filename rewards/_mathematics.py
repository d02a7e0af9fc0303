"""Decides whether two mathematical answers are equal, in a process of its own that may be killed.

A computer algebra system cannot be stopped from outside: `9^{9^{9^{9}}}` is one operation of the interpreter, which no
signal or exception of another thread reaches, and math-verify's own limits are alarms of the main thread, whereas
scoring runs on a worker thread. So math-verify runs in a child, with limits on its processor time (not on the clock:
what a busy machine does must not change scores) and on its memory, and with its own limits off.

Run as a program this file is the child: lines of JSON in, one word for each out.
"""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from functools import lru_cache
from pathlib import Path
from typing import Any

MEMORY = 2 << 30  # bytes of addresses of the child
PATIENCE = 20  # times the limit of processor time by the clock, and a minute: then the machine is at fault
SECOND_TRY = 0.2  # processor seconds after which a child that swallowed the end of its time is told again


class Mathematician:
    """Says of answers in LaTeX whether they can be read and are equal, `seconds` of processor time at most for each.

    Its child is started at the first question, and again after one that killed it. Usable from any thread.
    """

    def __init__(self, seconds: float, float_rounding: int, is_strict: bool) -> None:
        self.settings = {"seconds": seconds, "float_rounding": float_rounding, "strict": is_strict}
        self.patience = 60 + PATIENCE * seconds
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def can_read(self, right: str) -> bool:
        """Whether this is mathematics that answers can be compared with, in time: it equals itself."""
        return self._ask({"right": right}) == "equal"

    def are_equal(self, right: str, answer: str) -> bool:
        """Whether the answer equals the right one. Not, where it cannot be read, or time or memory do not suffice."""
        return self._ask({"right": right, "answer": answer}) == "equal"

    def _ask(self, question: dict[str, str]) -> str:
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                self._child = self._start()
            assert self._child.stdin is not None
            self._child.stdin.write(json.dumps(question) + "\n")
            self._child.stdin.flush()
            return self._reply(self._child)

    def _start(self) -> "subprocess.Popen[str]":
        # -P: beside this file lie rewards whose names others may have too
        command = [sys.executable, "-P", str(Path(__file__)), json.dumps(self.settings)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="ascii")
        weakref.finalize(self, _end, child)
        if self._reply(child) != "ready":
            raise RuntimeError(f"math-verify does not start: its process ended with {child.returncode}")
        return child

    def _reply(self, child: "subprocess.Popen[str]") -> str:
        """One word of the child; "killed" where the question was too much for it."""
        assert child.stdout is not None
        if not select.select([child.stdout], [], [], self.patience)[0]:
            _end(child)
            raise RuntimeError(f"math-verify did not answer within {self.patience:g} seconds")
        word = child.stdout.readline().strip()
        if not word:
            code = child.wait(self.patience)
            _end(child)
            if code == -signal.SIGKILL:
                raise RuntimeError("the process of math-verify was killed from outside, such as for want of memory")
        return word or "killed"


def _end(child: "subprocess.Popen[str]") -> None:
    """Ends a child, if it has not yet, and gives its pipes back."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # a question that nobody reads any more
            pipe.close()


class _OutOfTime(BaseException):
    """Beside Exception, which math-verify catches."""


def _raise(signum: int, frame: object) -> None:
    raise _OutOfTime


def _limited(seconds: float, function: Any, *arguments: Any) -> str:
    """The word that the function gives; "late" where it takes longer. The system ends this process soon after that."""
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


def _serve(settings: dict[str, Any]) -> None:
    import logging
    import resource

    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _raise)
    # LaTeX alone: math-verify's plain expressions go through `eval`.
    latex = (LatexExtractionConfig(boxed_match_priority=0),)

    @lru_cache(1024)
    def read(text: str) -> Any:
        return parse(f"\\boxed{{{text}}}", latex, fallback_mode="no_fallback", parsing_timeout=None)

    def judge(right: str, answer: str | None = None) -> str:
        rounding, strict = settings["float_rounding"], settings["strict"]
        said = read(right if answer is None else answer)  # what does not equal itself, such as 1/0, judges nobody
        is_equal = verify(read(right), said, rounding, strict=strict, timeout_seconds=None)
        return "equal" if is_equal else "different"

    words = os.fdopen(os.dup(1), "w")  # what others print does not get among the words
    os.dup2(2, 1)
    print("ready", file=words, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        word = _limited(settings["seconds"], judge, question["right"], question.get("answer"))
        print(word, file=words, flush=True)


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
