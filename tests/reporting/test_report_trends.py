"""Rewards that part ways are pointed out, and others are not."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr

from mmrl.reporting.report import write_report
from mmrl.reporting.trends import rank_correlation


def page_of(folder: Path, curves: dict[str, list[float]], config: str = "") -> str:
    folder.mkdir(exist_ok=True)
    length = len(next(iter(curves.values())))
    lines: list[dict[str, Any]] = [
        {"iteration": n}
        | {f"reward/{name}/mean": values[n] for name, values in curves.items()}
        | {f"reward/{name}/std": 0.1 for name in curves}
        for n in range(length)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if config:
        (folder / "config.yaml").write_text(config)
    return write_report(folder).read_text()


SOURCE = random.Random(0)
UP = [n / 40 + SOURCE.gauss(0, 0.05) for n in range(40)]
DOWN = [1 - value for value in UP]
FLAT = [SOURCE.gauss(0, 0.05) for _ in range(40)]
SLIGHT = [1 - n / 4000 for n in range(40)]  # sure, but a fortieth of its own spread


def test_a_reward_that_falls_while_another_rises_is_pointed_out(tmp_path: Path) -> None:
    page = page_of(tmp_path, {"aesthetic": UP, "clip <b>": DOWN, "flat": FLAT})
    assert page.count("one may be bought with the other") == 1
    assert "<b>aesthetic</b> rose" in page and "<b>clip &lt;b&gt;</b> fell" in page


@pytest.mark.parametrize(
    ("curves", "config"),
    [
        ({"a": UP, "b": UP}, ""),
        ({"a": UP, "b": FLAT}, ""),
        ({"a": UP, "b": SLIGHT}, ""),
        ({"a": UP[:7], "b": DOWN[:7]}, ""),
        ({"a": UP, "b": DOWN}, "rewards:\n- {name: length, label: b, weight: -0.5}\n"),
    ],
    ids=["both rise", "one is level", "too little to matter", "too short a run", "meant to fall"],
)
def test_nothing_else_is(tmp_path: Path, curves: dict[str, list[float]], config: str) -> None:
    assert "bought with the other" not in page_of(tmp_path, curves, config)


def test_the_seconds_of_rewards_are_told_apart_from_the_parts_of_an_iteration(tmp_path: Path) -> None:
    line = {"iteration": 0, "time/iteration": 4.0, "time/rollout": 3.0, "time/update": 1.0, "time/reward/slow": 2.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    page = write_report(tmp_path).read_text()
    assert "slow 2.50 s" in page and "75.0 %" in page and "reward/slow</th>" not in page


def test_rank_correlation_is_scipy_s() -> None:
    source = random.Random(1)
    for _ in range(20):
        values = [float(source.randrange(6)) for _ in range(source.randrange(3, 30))]
        if len(set(values)) > 1:
            assert rank_correlation(values) == pytest.approx(spearmanr(range(len(values)), values).statistic)
    assert rank_correlation([1.0, 1.0]) == 0 and not math.isnan(rank_correlation([2.0]))
