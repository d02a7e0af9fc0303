"""A real vLLM on the CPU: it agrees with the trainer, and a run that starts it goes on when it is killed."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
environment: Any = importlib.import_module("benchmarks.real_vllm.environment")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not environment.is_installed(environment.default_folder()),
        reason="no vLLM here; `python -m benchmarks.real_vllm install` makes an environment with it (3.5 GB)",
    ),
]


def measured(*words: str) -> list[dict[str, Any]]:
    """The lines of a measurement."""
    command = [sys.executable, "-m", "benchmarks.real_vllm", *words]
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_server_agrees_with_the_trainer_once_it_has_the_weights() -> None:
    whole, lora, _ = measured("agreement", "--families", "qwen2_5_vl", "--prompts", "images")
    for row in (whole, lora):
        for stage in ("as loaded", "moved, sent", "moved back, sent"):
            assert row[stage]["mean"] < 1e-5 and row[stage]["largest"] < 1e-3, stage
        assert row["moved, not sent"]["mean"] > 0.01, "the control"


def test_a_run_starts_its_server_again_and_leaves_nothing() -> None:
    (row,) = measured("faults", "--faults", "restarted")
    assert row["exit"] == 0 and row["iterations"] == 5
    assert row["largest_difference"] < 1e-5, "the new server has the newest weights"
    assert row["processes"] == row["folders_left"] == 0
