"""Programs in namespaces of their own, where the kernel permits this: without a network, and not as root."""

import os
import shlex
import subprocess
from functools import cache
from pathlib import Path

NOBODY = 65534
SECONDS = 10.0  # time limit of a trial, which takes milliseconds


class NotPermitted(Exception):
    """The error of a system without namespaces; its text says why."""


def write_launcher(program: str, folder: Path) -> Path:
    """Writes a script into `folder` that runs `program`, with the script's arguments, in namespaces of its own.

    Raises NotPermitted where the system does not allow it.
    """
    if (words := _refusal(program)) is not None:
        raise NotPermitted(words)
    launcher = folder / "launcher"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join([*_entering(), program])} "$@"\n', encoding="utf-8")
    launcher.chmod(0o700)
    if not os.access(launcher, os.X_OK):
        raise NotPermitted(f"no program can be started from {folder}")
    return launcher


@cache
def _refusal(program: str) -> str | None:
    """Returns why `program` cannot run in namespaces; None where it can.

    A trial decides, once in a process: the answer depends on the system, the user, and the container's filters.
    """
    try:
        trial = subprocess.run([*_entering(), "test", "-x", program], capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if trial.returncode == 0 else trial.stderr.strip() or f"{program} could not be executed"


def _entering() -> list[str]:
    """Returns the words before a command that runs it in namespaces.

    The network namespace has no network, not even loopback. The user namespace lets an ordinary user create the network
    namespace; in it root becomes nobody, who owns root's files and has no other right of root.
    """
    is_root = os.geteuid() == 0
    user, group = (NOBODY, NOBODY) if is_root else (os.geteuid(), os.getegid())
    return ["unshare", "--user", f"--map-user={user}", f"--map-group={group}", "--net", "--"]
