"""Runs a command for as long as the process that started this one lives: `python guard.py COMMAND ...`.

Standard input is a pipe from that process. Its end, also after a SIGKILL, ends the command with all processes of its
group: vLLM's workers outlive the server's first process otherwise.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

_PATIENCE = 10.0  # seconds between a polite end and a hard one


def main(command: Sequence[str]) -> int:
    """Runs the command to its end, or to that of standard input; returns its exit code."""
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"cannot start {command[0]!r}: {error.strerror}", flush=True)
        return 127
    signal.signal(signal.SIGTERM, lambda *_: _end(child))
    threading.Thread(target=_watch, args=(child,), daemon=True).start()
    code = child.wait()
    _signal(child, signal.SIGKILL)  # what is left of its group
    return code


def _watch(child: "subprocess.Popen[bytes]") -> None:
    while os.read(sys.stdin.fileno(), 2**12):
        pass
    _end(child)


def _end(child: "subprocess.Popen[bytes]") -> None:
    _signal(child, signal.SIGTERM)
    late = threading.Timer(_PATIENCE, _signal, (child, signal.SIGKILL))
    late.daemon = True
    late.start()


def _signal(child: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
