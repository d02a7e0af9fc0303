"""The rules on what rewards and prompts weigh, on planted runs and on those of docs/curves.md."""

import json
from pathlib import Path

import pytest

from mmrl.core.config import load_config
from mmrl.diagnosis.history import History
from mmrl.diagnosis.prompt_findings import without_spread
from mmrl.diagnosis.rules import all_findings, findings_of
from mmrl.reporting.group_log import Group, GroupLog
from mmrl.reporting.prompt_groups import prompt_histories, read_groups
from tests.diagnosis.test_rules import RUNS, config_of, planted, recorded
from tests.parameters import in_one_test


def test_the_run_of_two_prompts_is_named_and_no_other() -> None:
    named = {name for name in RUNS if "few_prompts" in {one.name for one in all_findings(recorded(name))}}
    assert named == {"few"}
    (finding,) = [one for one in all_findings(recorded("few")) if one.name == "few_prompts"]
    assert finding.iteration == 15 and finding.value == 60 and "seen 60 times" in finding.cause


def memorising(scores: list[float], rewards: list[float], passes: float = 40.0) -> History:
    history = History(load_config("quickstart"))
    for number, score in enumerate(scores):
        for part in range(3 if number else 0):
            history.add(3 * number - 2 + part, {"reward/mean": rewards[number], "prompts/passes": passes})
        history.add(3 * number, {"held_out/score": score})
    return history


RISING = [0.3, 0.4, 0.6, 0.7, 0.8]


@in_one_test(
    ("scores", "rewards", "passes", "is_named"),
    [
        ([0.4, 0.6, 0.6, 0.59, 0.58], RISING, 40.0, True),
        ([0.4, 0.6, 0.6, 0.59, 0.58], RISING, 9.0, False),  # few passes
        ([0.4, 0.6, 0.65, 0.7, 0.75], RISING, 40.0, False),  # the held-out score rises too
        ([0.4, 0.6, 0.6, 0.59, 0.58], [0.3, 0.4, 0.71, 0.72, 0.73], 40.0, True),
        ([0.4, 0.6, 0.6, 0.59, 0.58], [0.3, 0.7, 0.71, 0.72, 0.73], 40.0, False),  # both levelled off
        ([0.4, 0.6, 0.61], RISING, 40.0, False),  # too early
    ],
)
def test_few_prompts_are_named_where_the_reward_rises_alone(
    scores: list[float], rewards: list[float], passes: float, is_named: bool
) -> None:
    history = memorising(scores, rewards, passes)
    first = {"reward/mean": [(1, 0.3), *history.values["reward/mean"][1:]]}
    history.values |= first
    assert ("few_prompts" in {one.name for one in findings_of(history)}) == is_named


@in_one_test(
    ("shares", "level", "is_named"),
    [
        ((0.97, 0.02, 0.01), (0.1, 0.9), True),
        ((0.97, 0.02, 0.01), (0.9, 0.9), False),  # the others are level: another finding
        ((0.90, 0.08, 0.02), (0.1, 0.1), False),
    ],
)
def test_a_reward_that_decides_alone_is_a_note(
    shares: tuple[float, ...], level: tuple[float, float], is_named: bool
) -> None:
    names = ("point_in_box", "gaussian_click", "format_tags")
    curves = {f"reward__{name}__share": [share] * 3 for name, share in zip(names, shares, strict=True)}
    curves |= {f"reward__{name}__constant_groups": [one] * 3 for name, one in zip(names[1:], level, strict=True)}
    found = [one for one in findings_of(planted(config_of(), **curves)) if one.name == "one_reward_dominates"]
    assert [one.severity for one in found] == ["note"] * is_named
    assert not found or ("gaussian_click" in found[0].remedy and "97.0%" in found[0].cause)


def groups(flat: dict[str, float], other: dict[str, float], times: int) -> list[list[Group]]:
    """Groups of each iteration: prompts without spread and those with some, by name and mean total."""
    return [
        [
            Group(n, name, f"prompt {name}", 4, mean, 0.0 if name in flat else 0.5, {}, is_degenerate=name in flat)
            for n, (name, mean) in enumerate({**flat, **other}.items())
        ]
        for _ in range(times)
    ]


def written(folder: Path, iterations: list[list[Group]]) -> Path:
    log = GroupLog(folder / "groups.jsonl")
    for number, listed in enumerate(iterations, start=1):
        log.write(number, listed)
    return folder


def test_prompts_that_never_had_spread_are_counted_and_named(tmp_path: Path) -> None:
    flat = {"a": 0.0, "b": 1.0, "\x1b[2J<script>": 0.1}
    record = read_groups(written(tmp_path, groups(flat, {"c": 0.5, "d": 0.6}, 3)))
    (finding,) = without_spread(record)
    assert (finding.name, finding.severity, finding.iteration) == ("prompts_without_spread", "warning", 3)
    assert finding.value == pytest.approx(0.6)
    assert "3 of 5 prompts" in finding.cause and "2 below the run's mean total and 1 not below it" in finding.cause
    assert "'prompt a' (0); 'prompt \\x1b[2J<script>' (0.1); 'prompt b' (1)" in finding.cause
    assert "SFT" in finding.remedy
    table = prompt_histories(record)
    assert "5 of 5 prompts were sampled in more than one iteration, and 3 of these taught nothing each time" in table
    assert table.count("never spread") == 3 and "<script>" not in table


@in_one_test(
    ("flat", "times", "last_spread"),
    [
        (1, 3, False),  # 1 of 4 is no third
        (3, 2, False),  # not seen often enough
        (3, 3, True),  # each had spread once
    ],
)
def test_prompts_with_spread_now_and_then_are_not(flat: int, times: int, last_spread: bool, tmp_path: Path) -> None:
    names = {f"p{n}": 0.1 * n for n in range(4)}
    level = {name: names[name] for name in list(names)[:flat]}
    iterations = groups(level, {name: mean for name, mean in names.items() if name not in level}, times)
    if last_spread:
        iterations = [*iterations, *groups({}, names, 1)]
    record = read_groups(written(tmp_path, iterations))
    assert without_spread(record) == []
    (tmp_path / "groups.jsonl").unlink()


def test_a_run_without_groups_has_none(tmp_path: Path) -> None:
    assert without_spread(read_groups(tmp_path)) == []
    (tmp_path / "groups.jsonl").write_text(json.dumps({"iteration": 1, "groups": []}) + "\n")
    assert without_spread(read_groups(tmp_path)) == []


def test_the_guide_names_the_finding_on_prompts() -> None:
    assert "| `prompts_without_spread` |" in (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()


@in_one_test(
    ("shares", "leads", "is_named"),
    [
        ([0.5, 0.5, 0.7, 0.9, 0.96, 0.97, 0.98], [-0.1, -0.1, -0.1, 0.0], True),
        ([0.5, 0.5, 0.7, 0.9, 0.96, 0.97, 0.98], [0.1, 0.1, 0.1, 0.1], False),  # it was the better one
        ([0.5, 0.5, 0.7, 0.9, 0.96, 0.97, 0.98], [-0.1, -0.1], False),  # hardly compared
        ([0.9, 0.9, 0.9, 0.9, 0.96, 0.97, 0.98], [-0.1, -0.1, -0.1], False),  # so it was from the beginning
        ([0.5, 0.5, 0.6, 0.6, 0.6, 0.7, 0.7], [-0.1, -0.1, -0.1], False),
    ],
)
def test_a_format_that_wins_without_being_better_is_a_note(
    shares: list[float], leads: list[float], is_named: bool
) -> None:
    history = planted(config_of(), answers__dominant_format=shares, answers__dominant_lead=leads)
    found = [one for one in findings_of(history) if one.name == "one_format_dominates"]
    assert [one.severity for one in found] == ["note"] * is_named


def test_a_reward_against_the_likelihood_is_a_note() -> None:
    for values, is_named in (([-0.6, -0.5, -0.7], True), ([-0.6, -0.1, -0.2], False), ([0.9] * 3, False)):
        found = findings_of(planted(config_of(), follows__likelihood=values, policy__entropy=[1.0] * 3))
        assert [one.name for one in found] == ["rewards_unlikely"] * is_named
