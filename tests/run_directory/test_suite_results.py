"""Results of suites on the disk: a cut line is left behind, another binding begins anew, failures are tried again."""

from pathlib import Path

import pytest

from mmrl.run_directory.suite_results import ResultsFile, SampleResult
from mmrl.system.errors import ConfigError, RunError


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


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("nothing\n", "line 1 is damaged"),
        ("[1]\n", "line 1 is no result of a suite; remove the file"),
        ('{"bound": {}, "more": 1}\n', "line 1 is no result"),
        ('{"bound": {}}\n{"prompt": 1}\n', "line 2 is no result"),
        ('{"bound": {}}\n\n', "line 2 is damaged"),
    ],
)
def test_what_is_no_file_of_results_is_refused(lines: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(lines)
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path)
    assert (tmp_path / "results.jsonl").read_text() == lines, "it stays for its owner to look at"


def test_all_parts_of_a_binding_that_are_others_are_named_in_order(tmp_path: Path) -> None:
    opened(tmp_path, suite="a", prompts="p")[0].add([row(0, 0)])
    results, others = opened(tmp_path, suite="b", settings="s")
    assert others == ["prompts", "settings", "suite"] and results.rows == {}
    assert opened(tmp_path, suite="b", settings="s")[1] == []


def test_a_prompt_is_done_by_samples_that_were_judged_and_each_counts_once(tmp_path: Path) -> None:
    results, _ = opened(tmp_path)
    results.add([row(0, 0), row(0, 0), row(1, 0), row(1, 1, None), row(2, 1), row(2, 0), row(2, 2)])
    assert results.done(2) == [2] and results.done(1) == [0, 1, 2] and results.done(4) == []
    assert opened(tmp_path)[0].rows == results.rows


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    results, _ = opened(tmp_path)
    first = SampleResult(3, 1, "a \u2028 line\nbreak", {"one": 0.1 + 0.2, "two": None}, None, 'it said "no"')
    results.add([first])
    (again,) = opened(tmp_path)[0].rows.values()
    assert again == first
    assert (again.score("one"), again.score("two"), again.score("none"), again.score(None)) == (
        0.1 + 0.2,
        None,
        None,
        None,
    )


def test_a_folder_that_cannot_be_written_is_the_runs_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        opened(tmp_path / "file" / "suite")
    results, _ = opened(tmp_path / "suite")
    results.path.unlink()
    results.path.mkdir()
    with pytest.raises(RunError, match="make room on the disk"):
        results.add([row(0, 0)])
    assert results.rows == {}, "what is not on the disk is not done"
