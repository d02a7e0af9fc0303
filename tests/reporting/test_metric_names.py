"""Logs of older runs are read under the names that metrics have now."""

import json
from pathlib import Path

from same_training import compare

from mmrl.reporting.metric_names import RENAMED, renamed
from mmrl.reporting.metrics_log import MetricsLog
from mmrl.reporting.record import read_record

OLD = [{"iteration": 1, "tokens/drawn": 12.0, "loss/total": 0.5}, {"iteration": 2, "tokens/drawn": 14.0}]


def _log(folder: Path) -> Path:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in OLD))
    return path


def test_old_names_become_new_ones_and_the_rest_stays_in_its_order() -> None:
    assert list(renamed({"a": 1, "tokens/drawn": 2, "b": 3}).items()) == [("a", 1), ("tokens/sampled", 2), ("b", 3)]
    assert renamed({"tokens/drawn": 1, "tokens/sampled": 2}) == {"tokens/sampled": 2}


def test_no_new_name_is_an_old_one() -> None:
    assert not set(RENAMED) & set(RENAMED.values()) and len(set(RENAMED.values())) == len(RENAMED)


def test_the_log_of_an_older_run_is_read_under_the_new_names(tmp_path: Path) -> None:
    lines = MetricsLog(_log(tmp_path)).read()
    assert [line["tokens/sampled"] for line in lines] == [12.0, 14.0] and "tokens/drawn" not in lines[0]


def test_cutting_the_log_back_leaves_its_bytes_as_they_are(tmp_path: Path) -> None:
    path = _log(tmp_path)
    MetricsLog(path).cut_back(1)
    assert path.read_text() == json.dumps(OLD[0]) + "\n"


def test_a_report_finds_the_metrics_of_an_older_run_and_what_follows_them(tmp_path: Path) -> None:
    path = _log(tmp_path)
    path.write_text(path.read_text() + json.dumps({"iteration": 3, "tokens/sampled": 16.0}) + "\n")
    metrics = read_record(tmp_path).metrics
    assert metrics["tokens/sampled"].values.tolist() == [12.0, 14.0, 16.0] and "tokens/drawn" not in metrics


def test_two_versions_are_compared_under_the_new_names(tmp_path: Path) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    for path, name, value in ((before, "tokens/drawn", 3.0), (after, "tokens/sampled", 3.0)):
        line = json.dumps({"iteration": 1, name: value}, sort_keys=True)
        path.write_text(json.dumps({"lab/xrpo": {"metrics": [line], "weights": {}}}))
    assert compare(before, after) == []
    after.write_text(after.read_text().replace("3.0", "4.0"))
    assert compare(before, after) == ["lab/xrpo: metrics differ"]
