"""The doctor in a training run: said once, kept, and not said again by a run that is resumed."""

import logging
from pathlib import Path

import pytest

from mmrl.core.config import load_config
from mmrl.diagnosis.watch import Watch
from mmrl.reporting.findings import read_findings
from mmrl.reporting.metrics_log import MetricsLog

ALIKE = {"groups/degenerate": 1.0, "reward/mean": 0.0}


def test_a_finding_is_said_once_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(tmp_path, load_config("lab/grpo"))
    watch.open(-1)
    with caplog.at_level(logging.WARNING):
        for iteration in (1, 2, 3, 4):
            watch.see(iteration, ALIKE)
    (finding,) = read_findings(tmp_path)
    assert (finding.iteration, finding.name, finding.severity) == (2, "groups_without_spread", "warning")
    (record,) = caplog.records
    assert "groups_without_spread" in record.getMessage() and finding.remedy in record.getMessage()


def test_a_note_is_kept_and_not_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(tmp_path, load_config("lab/grpo"))
    for iteration in (1, 2, 3):
        watch.see(iteration, {"loss/chosen": -5.0, "loss/rejected": -6.0})
    assert [one.severity for one in read_findings(tmp_path)] == ["note"] and not caplog.records


def test_a_resumed_run_knows_what_was_and_drops_what_is_made_again(tmp_path: Path) -> None:
    log, first = MetricsLog(tmp_path / "metrics.jsonl"), Watch(tmp_path, load_config("lab/grpo"))
    for iteration in (1, 2, 3, 4, 5, 6):
        metrics = ALIKE if iteration < 5 else {"answers/finished": 0.1}
        log.write(iteration, metrics)
        first.see(iteration, metrics)
    assert [one.name for one in read_findings(tmp_path)] == ["groups_without_spread", "answers_unfinished"]
    log.cut_back(5)
    resumed = Watch(tmp_path, load_config("lab/grpo"))
    resumed.open(5)
    assert [one.name for one in read_findings(tmp_path)] == ["groups_without_spread"]
    assert resumed.history.values["answers/finished"] == [(5, 0.1)]
    resumed.see(6, {"answers/finished": 0.1})
    assert [(one.iteration, one.name) for one in read_findings(tmp_path)][1:] == [(6, "answers_unfinished")]
