"""Results of suites on the disk: a cut line is left behind, another binding begins anew, failures are tried again."""

from pathlib import Path

import pytest

from mmrl.run_directory.suite_results import ResultsFile, SampleResult
from mmrl.system.errors import ConfigError


def row(prompt: int, sample: int, total: float | None = 0.5) -> SampleResult:
    return SampleResult(prompt, sample, "a", {"one": total}, total)


def opened(folder: Path, **bound: str) -> tuple[ResultsFile, list[str]]:
    results = ResultsFile(folder, {"weights": "w", **bound})
    return results, results.open()


def test_rows_are_there_again_but_for_a_cut_one(tmp_path: Path) -> None:
    results, others = opened(tmp_path)
    results.add([row(0, 0), row(0, 1), row(1, 0)])
    with results.path.open("a") as file:
        file.write('{"prompt": 1, "sam')
    again, changed = opened(tmp_path)
    assert others == changed == [] and again.rows == results.rows and again.done(2) == [0]
    again.add([row(1, 1)])
    assert opened(tmp_path)[0].done(2) == [0, 1]


def test_a_sample_that_failed_is_tried_again(tmp_path: Path) -> None:
    results, _ = opened(tmp_path)
    results.add([row(0, 0, None)])
    assert results.done(1) == []
    results.add([row(0, 0)])
    assert opened(tmp_path)[0].done(1) == [0]


def test_other_weights_begin_anew(tmp_path: Path) -> None:
    opened(tmp_path)[0].add([row(0, 0)])
    results, others = opened(tmp_path, weights="other")
    assert others == ["weights"] and not results.rows
    assert opened(tmp_path)[1] == ["weights"]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    results, _ = opened(tmp_path)
    with results.path.open("a") as file:
        file.write("nothing\n")
    with pytest.raises(ConfigError, match="line 2 is damaged"):
        opened(tmp_path)
