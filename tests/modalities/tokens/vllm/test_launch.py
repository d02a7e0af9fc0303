"""A server that the run starts: the options that it gets, its end with the run, and what is said where it fails."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mmrl.core.contracts import ConfigError
from mmrl.modalities.tokens.vllm import guard
from mmrl.modalities.tokens.vllm.launch import Launched, Served, arguments_of, environment_of

# a front process and a worker of it that outlives it, as vLLM's do; the numbers of both go into a file
SERVER = """
import os, signal, subprocess, sys, time
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(99)"
worker = subprocess.Popen([sys.executable, "-c", deaf])
open(sys.argv[1], "w").write(f"{os.getpid()} {worker.pid}")
print("it listens", flush=True)
time.sleep(99)
"""
LORA = Served("a/b", "bfloat16", 24, True, 3136, None)
WHOLE = Served("a/b", "float32", None, False, None, None)


def until(is_so: Callable[[], bool], seconds: float = 20.0) -> None:
    """Waits until something is so."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never was"
        time.sleep(0.02)


def is_running(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def numbers_in(file: Path) -> list[int]:
    until(lambda: file.is_file() and len(file.read_text().split()) == 2)
    return [int(number) for number in file.read_text().split()]


def test_the_options_are_those_that_a_run_needs() -> None:
    options = " ".join(arguments_of(LORA, "http://127.0.0.1:9000", can_sleep=True))
    for needed in (
        "--port 9000", "--dtype bfloat16", "--enable-scale-out", "--logprobs-mode processed_logprobs",
        "--generation-config vllm", "--enable-lora --max-lora-rank 32", "--enable-tower-connector-lora",
        '--mm-processor-kwargs {"size": {"shortest_edge": 3136}}', "--enable-sleep-mode",
    ):  # fmt: skip
        assert needed in options
    whole = " ".join(arguments_of(WHOLE, "http://127.0.0.1:8000", can_sleep=False))
    assert not any(word in whole for word in ("lora", "sleep", "mm-processor"))
    assert environment_of(LORA, can_sleep=False).keys() & {"VLLM_SERVER_DEV_MODE"} == set()
    assert environment_of(LORA, can_sleep=False)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert environment_of(WHOLE, can_sleep=False)["VLLM_SERVER_DEV_MODE"] == "1"


def test_a_rank_without_a_slot_is_refused() -> None:
    with pytest.raises(ConfigError, match="slots for ranks up to 512, got 513"):
        arguments_of(Served("a/b", "float32", 513, False, None, None), "http://127.0.0.1:1", can_sleep=False)


@pytest.mark.slow
def test_a_server_ends_with_all_its_processes(tmp_path: Path) -> None:
    made = Launched([sys.executable, "-c", SERVER, str(tmp_path / "pids")], {}, tmp_path / "log")
    made.wait_until((tmp_path / "pids").is_file, 20)
    front, worker = numbers_in(tmp_path / "pids")
    assert made.is_alive and is_running(front) and is_running(worker)
    made.end()
    assert not made.is_alive
    until(lambda: not is_running(front) and not is_running(worker))
    made.end()


@pytest.mark.slow
def test_a_server_ends_where_its_run_is_killed(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, guard.__file__, sys.executable, "-c", SERVER, str(tmp_path / "pids")], stdin=subprocess.PIPE
    )
    front, worker = numbers_in(tmp_path / "pids")
    assert run.stdin is not None
    run.stdin.close()  # as the system does for a process that was killed
    run.wait(20)
    until(lambda: not is_running(front) and not is_running(worker))


@pytest.mark.slow
def test_what_a_server_leaves_is_ended_where_its_first_process_is_killed(tmp_path: Path) -> None:
    made = Launched([sys.executable, "-c", SERVER, str(tmp_path / "pids")], {}, tmp_path / "log")
    front, worker = numbers_in(tmp_path / "pids")
    os.kill(front, signal.SIGKILL)
    until(lambda: not made.is_alive and not is_running(worker))
    made.end()


@pytest.mark.slow
def test_a_server_that_ends_at_once_shows_its_last_words(tmp_path: Path) -> None:
    made = Launched([sys.executable, "-c", "print('no memory'); raise SystemExit(3)"], {}, tmp_path / "log")
    with pytest.raises(ConfigError, match=r"(?s)ended before it answered; the end of its log, .*no memory"):
        made.wait_until(lambda: False, 20)
    made.end()


def test_a_command_that_is_not_there_is_said(tmp_path: Path) -> None:
    made = Launched(["/nowhere/vllm", "serve"], {}, tmp_path / "log")
    with pytest.raises(ConfigError, match=r"(?s)ended before it answered; .*cannot start '/nowhere/vllm'"):
        made.wait_until(lambda: False, 20)
    made.end()


@pytest.mark.slow
def test_a_server_that_never_answers_is_ended(tmp_path: Path) -> None:
    made = Launched([sys.executable, "-c", SERVER, str(tmp_path / "pids")], {}, tmp_path / "log")
    front, _ = numbers_in(tmp_path / "pids")
    with pytest.raises(ConfigError, match=r"(?s)did not answer within 0.1 seconds; raise .*it listens"):
        made.wait_until(lambda: False, 0.1)
    assert not is_running(front)
