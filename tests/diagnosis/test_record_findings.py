"""Findings on the files of a run: it ended early, or its numbers were never finite."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.config import RunConfig, load_config
from mmrl.diagnosis.record_findings import of_failure, of_record
from mmrl.reporting.findings import Finding
from mmrl.reporting.record import RunFailure, read_record
from mmrl.run_directory.lock import RunLock, this_process


def findings(run: Path, config: RunConfig, lines: list[str], summary: dict[str, Any] | None = None) -> list[Finding]:
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if summary is not None:
        (run / "summary.json").write_text(json.dumps(summary))
    return list(of_record(run, read_record(run), config))


def config(**changes: Any) -> RunConfig:
    return load_config("lab/grpo").model_copy(update={"iterations": 4, **changes})


LINES = ['{"iteration": 1, "reward/mean": 0.5}', '{"iteration": 2, "reward/mean": NaN}']


@pytest.mark.parametrize(
    ("summary", "how"),
    [
        (None, "2 of 4 iterations: its process left no summary"),
        ({"iterations": 1, "is_complete": False}, "its process left no summary"),  # it was resumed since
        ({"iterations": 2, "is_complete": False}, "it was stopped, and saved"),
        ({"iterations": 2, "is_complete": True}, r"a limit of its own ended it \(max_seconds 60\)"),
    ],
)
def test_a_run_that_ended_early_is_named_with_how(summary: dict[str, Any] | None, how: str, tmp_path: Path) -> None:
    (one,) = findings(tmp_path, config(max_seconds=60.0), LINES, summary)
    assert (one.name, one.severity, one.iteration, one.value) == ("ended_early", "note", 2, 0.5)
    with pytest.raises(AssertionError, match=how):
        raise AssertionError(one.cause)
    assert (f"mmrl train --resume {tmp_path}" in one.remedy) is not (summary or {}).get("is_complete", False)


@pytest.mark.parametrize(
    ("kind", "reason", "names"),
    [
        ("RunError", "the disk is full", ["ended_early"]),
        ("DivergedWeightsError", "the weights diverged", ["learning_rate_too_high", "ended_early"]),
        ("UnjudgedError", "3 of 4 samples failed: images hold NaN or infinity", ["rewards_fail", "ended_early"]),
    ],
)
def test_an_error_that_ended_a_run_is_named_with_its_cause(
    kind: str, reason: str, names: list[str], tmp_path: Path
) -> None:
    (tmp_path / "failure.json").write_text(json.dumps({"kind": kind, "reason": reason}))
    for iterations in (2, 4):  # the last one of all is logged, too
        named = findings(tmp_path, config(iterations=iterations), LINES, {"iterations": 2, "is_complete": False})
        assert [one.name for one in named] == names
        assert [one.severity for one in named] == ["fatal"] * (len(named) - 1) + ["note"]
        assert reason in named[0].cause
        what = reason if len(names) == 1 else f"that of {names[0]}"
        assert f"has 2 of {iterations} iterations: an error ended it: {what}" in named[-1].cause
        assert ("begins again" in named[-1].remedy) is (kind != "DivergedWeightsError")


def test_a_failure_that_is_damaged_or_long_takes_nothing_with_it(tmp_path: Path) -> None:
    for content in ("", "[]", '{"kind": "RunError"}', '{"kind": 1, "reason": "x"}'):
        (tmp_path / "failure.json").write_text(content)
        (one,) = findings(tmp_path, config(), LINES)
        assert "an error ended it: what failure.json says cannot be read" in one.cause
    (tmp_path / "failure.json").write_text(json.dumps({"kind": "RunError", "reason": "a\nb" + "x" * 10**6}))
    (one,) = findings(tmp_path, config(), LINES)
    assert "an error ended it: a b" in one.cause and "\n" not in one.cause and len(one.cause) < 2200


def test_a_word_of_a_message_is_not_taken_for_the_policy_s_own_numbers() -> None:
    for reason, remedy in (("no file BaNaNa.png", "mend the reward"), ("images hold NaN or infinity", "lower opt")):
        found = of_failure(RunFailure("UnjudgedError", reason), 1, config())
        assert found is not None and found.remedy.startswith(remedy)


def test_a_run_without_a_checkpoint_begins_again(tmp_path: Path) -> None:
    assert "begins again" in findings(tmp_path, config(), LINES)[0].remedy
    (tmp_path / "checkpoints" / "000002").mkdir(parents=True)
    assert "goes on from its checkpoint of 2" in findings(tmp_path, config(), LINES)[0].remedy


def test_nothing_is_said_of_a_whole_run_and_of_one_that_trains(tmp_path: Path) -> None:
    assert findings(tmp_path, config(iterations=2), LINES) == []
    lock = RunLock(tmp_path, this_process())
    parent = json.dumps(
        {"who": {**lock.me.__dict__, "process": os.getppid(), "start": None}, "since": "", "folder": ""}
    )
    lock.path.write_text(parent)  # that runs
    assert lock.is_taken and findings(tmp_path, config(), LINES) == []
    lock.path.write_text(parent.replace(str(os.getppid()), "4000000"))  # that does not
    assert not lock.is_taken and [one.name for one in findings(tmp_path, config(), LINES)] == ["ended_early"]


def test_numbers_that_never_were_are_fatal(tmp_path: Path) -> None:
    lines = ['{"iteration": 1, "reward/mean": NaN, "loss/total": 1.0, "time/iteration": NaN}'] * 2
    (one,) = findings(tmp_path, config(iterations=1), lines)
    assert (one.name, one.severity, one.value) == ("never_finite", "fatal", 1.0)
    assert "each value of reward/mean is NaN" in one.cause
    assert findings(tmp_path, config(iterations=2), LINES) == []
