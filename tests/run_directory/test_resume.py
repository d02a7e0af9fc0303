"""Runs that are killed, stopped and resumed end as if nothing had happened, bit for bit."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmrl.commands.train import train
from mmrl.run_directory import start
from mmrl.system.errors import ConfigError
from mmrl.training import checkpoint
from tests.tiny_runs import KINDS, Kill, Processes, arguments, assert_same, numbers, random_kills, story


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # before the process that is forked starts
        patch.setenv("ACCELERATE_USE_CPU", "true")
        processes = Processes(tmp_path_factory.mktemp("processes"))
        assert processes.run(["list", "configs"]) == 0  # by now everything is imported
        yield processes


class Uninterrupted:
    """What an uninterrupted run of each kind ends with, and the seconds it takes; made when it is first asked for."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes, self._folder = processes, folder
        self._made: dict[str, tuple[dict[str, Any], float]] = {}

    def __call__(self, kind: str) -> tuple[dict[str, Any], float]:
        if kind not in self._made:
            started = time.monotonic()
            assert self._processes.run(arguments(kind, self._folder / kind)) == 0
            self._made[kind] = numbers(self._folder / kind), time.monotonic() - started
        return self._made[kind]


@pytest.fixture(scope="module")
def uninterrupted(processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    return Uninterrupted(processes, tmp_path_factory.mktemp("uninterrupted"))


def kill_and_compare(
    processes: Processes, uninterrupted: Uninterrupted, kind: str, seed: int, kills: int, out: Path
) -> None:
    """At least `kills` kills, a third of them inside a save; a run that ends before its kill is followed by another."""
    wanted, seconds = uninterrupted(kind)
    planned, done = iter(random_kills(seed, 100 * kills, seconds)), list[Kill]()
    for attempt in range(10 * kills):
        done += story(processes, kind, out / str(attempt), [next(planned) for _ in range(max(1, kills - len(done)))])
        assert_same(numbers(out / str(attempt)), wanted)
        if len(done) >= kills and 3 * sum(kill.is_inside_save for kill in done) >= kills:
            return
    pytest.fail(
        f"only {len(done)} kills came in time, {sum(kill.is_inside_save for kill in done)} of them inside a save"
    )


@pytest.mark.slow  # four processes, at least
def test_a_run_killed_three_times_ends_as_if_it_had_not_been(
    processes: Processes, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    kill_and_compare(processes, uninterrupted, "nft", 0, 3, tmp_path)


@pytest.mark.slow
@pytest.mark.exhaustive  # 29 processes are killed
@pytest.mark.parametrize("kind", KINDS)
def test_runs_killed_at_random_and_inside_saves_end_as_if_they_had_not_been(
    processes: Processes, uninterrupted: Uninterrupted, kind: str, tmp_path: Path
) -> None:
    kills = 7 if kind in ("policy_gradient", "lora", "nft") else 4
    kill_and_compare(processes, uninterrupted, kind, 1 + list(KINDS).index(kind), kills, tmp_path)


@pytest.mark.slow  # three processes
def test_a_run_killed_before_its_first_checkpoint_starts_from_the_start(
    processes: Processes, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    assert processes.run(arguments("nft", tmp_path / "run"), Kill(save_event=0)) == -signal.SIGKILL
    assert checkpoint.latest(tmp_path / "run" / "checkpoints") is None
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 2  # before training, and one iteration
    assert processes.run(["train", "--resume", str(tmp_path / "run")]) == 0
    assert_same(numbers(tmp_path / "run"), uninterrupted("nft")[0])


@pytest.mark.slow  # three processes each
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("nft", signal.SIGINT),
        ("nft", signal.SIGTERM),
        ("vision_language", signal.SIGINT),
    ],
)
def test_a_stopped_run_finishes_its_iteration_and_saves_and_says_how_to_go_on(
    processes: Processes, uninterrupted: Uninterrupted, kind: str, number: signal.Signals, tmp_path: Path
) -> None:
    run, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    process = processes.start(arguments(kind, run, "checkpoint.every=0"))
    while process.is_alive() and (not metrics.exists() or metrics.read_text().count("\n") < 3):
        time.sleep(0.005)
    os.kill(process.pid, number)
    process.join()
    output = processes.output.read_text()
    assert process.exitcode == 1, output
    done = max(checkpoint.saved(run / "checkpoints"))
    assert 2 <= done < 6
    assert f"stopped after iteration {done}; go on with: mmrl train --resume {run}" in output
    assert processes.run(["train", "--resume", str(run)]) == 0
    assert_same(numbers(run), uninterrupted(kind)[0])


@pytest.mark.slow  # three runs each
@pytest.mark.parametrize("kind", ["policy_gradient", "vision_language_lora"])
def test_more_iterations_on_resume_equal_a_longer_run(processes: Processes, kind: str, tmp_path: Path) -> None:
    assert processes.run(arguments(kind, tmp_path / "longer", "iterations=9")) == 0
    assert processes.run(arguments(kind, tmp_path / "resumed")) == 0
    assert processes.run(["train", "--resume", str(tmp_path / "resumed"), "iterations=9"]) == 0
    assert_same(numbers(tmp_path / "resumed"), numbers(tmp_path / "longer"))
    assert "iterations: 9" in (tmp_path / "resumed" / "config.yaml").read_text()


@pytest.mark.slow  # two processes, after all is imported
def test_resuming_a_finished_run_changes_nothing_and_reports(processes: Processes, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert processes.run(arguments("nft", run)) == 0
    before, metrics = numbers(run), (run / "metrics.jsonl").read_bytes()
    (run / "report.html").unlink()
    (run / "summary.json").unlink()
    assert processes.run(["train", "--resume", str(run)]) == 0
    assert_same(numbers(run), before)
    assert (run / "metrics.jsonl").read_bytes() == metrics
    assert (run / "report.html").exists() and (run / "summary.json").exists()
    assert "after 6 iterations" in processes.output.read_text()
    with pytest.raises(ConfigError, match="has 6 iterations already, got iterations=4"):
        train(start.resumed_run(run, ["iterations=4"]), run, resume=True)
