"""The log of groups: strict lines of short numbers, and what a resumed run leaves of it."""

import json
import math
from pathlib import Path

import pytest

from mmrl.reporting.group_log import Group, GroupLog
from mmrl.reporting.prompt_groups import read_groups
from mmrl.reporting.tracking import Tracking

GROUP = Group(4, "n", "a cat", 2, 1 / 3, math.nan, {"a": 123456.789, "b": None, "c": math.inf}, is_degenerate=True)


def filled(folder: Path, iterations: tuple[int, ...] = (1, 2, 3)) -> GroupLog:
    log = GroupLog(folder / "groups.jsonl")
    for iteration in iterations:
        log.write(iteration, [GROUP])
        log.samples_of(iteration).mkdir(parents=True)
        (log.samples_of(iteration) / "samples.json").write_text("{}")
    (folder / "rollouts" / "questions").mkdir()
    (folder / "rollouts" / "notes.txt").write_text("own")
    return log


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "rollouts").iterdir())


def test_a_line_is_strict_json_with_five_digits(tmp_path: Path) -> None:
    GroupLog(tmp_path / "groups.jsonl").write(7, [GROUP])
    line = json.loads((tmp_path / "groups.jsonl").read_text(), parse_constant=lambda word: pytest.fail(word))
    (group,) = line["groups"]
    assert line["iteration"] == 7 and group["rewards"] == {"a": 123460.0, "b": None, "c": None}
    assert (group["mean"], group["std"], group["degenerate"]) == (0.33333, None, True)
    (read,) = read_groups(tmp_path).newest
    assert (read.prompt, read.name, read.text, read.size, read.is_degenerate) == (4, "n", "a cat", 2, True)


@pytest.mark.parametrize(("kept", "left"), [(3, [1, 2, 3]), (2, [1, 2]), (0, []), (-1, [])])
def test_later_lines_and_folders_are_cut_and_others_stay(kept: int, left: list[int], tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.cut_back(kept)
    lines = [json.loads(line)["iteration"] for line in (tmp_path / "groups.jsonl").read_text().splitlines()]
    assert lines == left
    assert saved(tmp_path) == [f"{number:06d}" for number in left] + ["notes.txt", "questions"]


def test_a_line_that_a_kill_cut_goes_and_the_log_goes_on(tmp_path: Path) -> None:
    log = filled(tmp_path, (1, 2))
    with log.path.open("a") as file:
        file.write('{"iteration":3,"gro')
    log.cut_back(2)
    log.write(3, [GROUP])
    assert [json.loads(line)["iteration"] for line in log.path.read_text().splitlines()] == [1, 2, 3]


def test_a_run_without_groups_has_nothing_to_cut(tmp_path: Path) -> None:
    GroupLog(tmp_path / "groups.jsonl").cut_back(2)
    GroupLog(tmp_path / "groups.jsonl").sync()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_goes_on_cuts_its_groups_with_its_metrics(tmp_path: Path) -> None:
    log = filled(tmp_path)
    with Tracking(groups=log).open(tmp_path, {}, kept=1):
        assert saved(tmp_path) == ["000001", "notes.txt", "questions"]
