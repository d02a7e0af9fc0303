"""The memory of phases: a phase has a peak of its own, and the highest of all is not lost."""

import importlib
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from mmrl.reporting.metrics_log import MetricsLog
from mmrl.training import phase_memory
from mmrl.training.phase_memory import GIB, PhaseMemory


@dataclass
class Allocator:
    """A pretended CUDA allocator."""

    now: int = 0
    peak: int = 0

    def take(self, gib: float) -> None:
        self.now += int(gib * GIB)
        self.peak = max(self.peak, self.now)

    def reset(self, device: object = None) -> None:
        self.peak = self.now

    def most(self, device: object = None) -> int:
        return self.peak


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    made = Allocator()
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", made.reset)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", made.most)
    return made


def test_a_phase_has_its_own_peak_and_the_highest_of_all_stays(allocator: Allocator) -> None:
    memory, seen = PhaseMemory(torch.device("cuda")), list[float]()
    allocator.take(1)  # the model
    for rollout, between, update in ((2.0, 0.5, 6.0), (3.0, 9.0, 4.0)):
        for spent in (rollout, update):
            memory.begin()
            allocator.take(spent)
            allocator.take(-spent)
            seen.append(memory.end())
            allocator.take(between)  # no phase has it
            allocator.take(-between)
    assert seen == [3.0, 7.0, 4.0, 5.0]
    assert memory.highest == 10.0  # between two phases
    allocator.take(20)
    assert memory.highest == 10.0
    memory.begin()
    assert memory.highest == 21.0


def test_the_highest_is_the_models_where_phases_take_less(allocator: Allocator) -> None:
    allocator.take(8)
    allocator.take(-7)
    memory = PhaseMemory(torch.device("cuda"))
    memory.begin()
    assert memory.end() == 1.0 and memory.highest == 8.0


def test_without_a_gpu_it_is_what_the_process_holds(monkeypatch: pytest.MonkeyPatch, allocator: Allocator) -> None:
    allocator.take(99)
    sizes = [2 * GIB, 5 * GIB, 3 * GIB, 1 * GIB]
    monkeypatch.setattr(phase_memory, "resident_bytes", lambda: sizes.pop(0))
    memory = PhaseMemory(torch.device("cpu"))
    memory.begin()
    assert memory.end() == 5.0
    memory.begin()
    assert memory.end() == 1.0 and memory.highest == 5.0


def test_beside_a_gpu_the_cpus_memory_is_counted_too(monkeypatch: pytest.MonkeyPatch, allocator: Allocator) -> None:
    sizes = [2 * GIB, 5 * GIB]
    monkeypatch.setattr(phase_memory, "resident_bytes", lambda: sizes.pop(0))
    memory = PhaseMemory(torch.device("cuda"))
    allocator.take(1)
    memory.begin()
    assert memory.host == 2.0
    assert memory.end() == 1.0 and memory.highest == 1.0 and memory.host == 5.0


def test_a_dry_run_on_a_gpu_has_the_peak_of_the_whole_run(allocator: Allocator, tmp_path: Path) -> None:
    peak = importlib.import_module("benchmarks.gpu.dry_runs").peak  # by name: for mypy it has a name without benchmarks
    log = MetricsLog(tmp_path / "metrics.jsonl")
    allocator.take(2)
    assert peak(log) == 2 * GIB  # it failed before its first iteration
    log.write(1, {"memory/highest": 3.0})
    log.write(2, {"memory/highest": 4.0})
    log.write(2, {"held_out/score": 0.5})
    assert peak(log) == 4 * GIB
    allocator.take(3)
    assert peak(log) == 5 * GIB  # the last evaluation
