"""A second process on a run that trains is refused, and the first is unharmed; a killed holder leaves the run free."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_runs import Processes, arguments, assert_same, numbers

TRIES = int(os.environ.get("MMRL_TRIES", "1"))  # of each kind; more are an exhaustive run


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("ACCELERATE_USE_CPU", "true")
        processes = Processes(tmp_path_factory.mktemp("processes"))
        assert processes.run(["list", "configs"]) == 0
        yield processes


@pytest.fixture(scope="module")
def wanted(processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    whole = tmp_path_factory.mktemp("wanted") / "run"
    assert processes.run(arguments("nft", whole)) == 0
    return numbers(whole)


def second(processes: Processes, given: list[str], output: Path) -> tuple[int, str]:
    process = processes.start(given, output=output)
    process.join()
    return process.exitcode, output.read_text()


@pytest.mark.slow  # two processes at the same time, each
@pytest.mark.parametrize("seed", range(TRIES))
@pytest.mark.parametrize("how", ["resume", "out"])
def test_a_second_process_is_refused_and_the_first_is_unharmed(
    processes: Processes, wanted: dict[str, Any], how: str, seed: int, tmp_path: Path
) -> None:
    run, config = tmp_path / "run", tmp_path / "run" / "config.yaml"
    first = processes.start(arguments("nft", run))
    given = ["train", "--resume", str(run)] if how == "resume" else arguments("nft", run)
    while first.is_alive() and not config.exists():
        time.sleep(0.001)
    time.sleep(random.Random(seed).uniform(0, 0.5))
    code, said = second(processes, given, tmp_path / "said.txt")
    first.join()
    assert first.exitcode == 0, processes.output.read_text()
    assert code == 2 and f"run is in use: process {first.pid} on " in said, said
    assert_same(numbers(run), wanted)


@pytest.mark.slow  # a killed process, and one that goes on
@pytest.mark.parametrize("seed", range(TRIES))
def test_the_run_of_a_killed_process_goes_on_at_once(
    processes: Processes, wanted: dict[str, Any], seed: int, tmp_path: Path
) -> None:
    run, config = tmp_path / "run", tmp_path / "run" / "config.yaml"
    first = processes.start(arguments("nft", run))
    while first.is_alive() and not config.exists():
        time.sleep(0.001)
    time.sleep(random.Random(100 + seed).uniform(0, 0.5))
    os.kill(first.pid, signal.SIGKILL)
    code, said = second(processes, ["train", "--resume", str(run)], tmp_path / "said.txt")
    assert code == 0, said
    first.join()
    assert first.exitcode == -signal.SIGKILL, "the kill came too late"
    assert_same(numbers(run), wanted)
