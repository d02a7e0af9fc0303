"""constrained by hand."""

import math
from typing import Any

import pytest

from mmrl.core.contracts import ConfigError
from mmrl.core.plugins import build
from tests.rewards.example import Example, answers, make_batch
from tests.rewards.inner import SECOND, WRITTEN, numbers, said, wrapped

THIRD: dict[str, Any] = {"name": "tests.rewards.inner:Written", "place": 2}
EXAMPLE = Example(
    random_batch=numbers, best=lambda: said("1 1", "1 0.5"), settings={"reward": WRITTEN, "constraints": [SECOND]}
)
SAID = ("0.2 1 0.5", "0.9 0.4 1", "0.7 1 0.4", "0.8 0 0", "0.6 0.5 0.5")


def test_a_broken_constraint_sets_or_caps_the_score() -> None:
    both = [SECOND, THIRD]
    assert wrapped("constrained", constraints=both).score(said(*SAID)).tolist() == pytest.approx([0.2, 0, 0, 0, 0.6])
    below = wrapped("constrained", constraints=both, limit=-1)
    assert below.score(said(*SAID)).tolist() == pytest.approx([0.2, -1, -1, -1, 0.6]) and below.range == (-1, 1)
    capped = wrapped("constrained", constraints=both, broken="cap", limit=0.75)
    assert capped.score(said(*SAID)).tolist() == pytest.approx([0.2, 0.75, 0.7, 0.75, 0.6]) and capped.range == (0, 1)
    strict = wrapped("constrained", constraints=both, threshold=0.6)
    assert strict.score(said(*SAID)).tolist() == [0, 0, 0, 0, 0]


def test_a_constraint_that_cannot_be_judged_leaves_the_sample_out() -> None:
    found = wrapped("constrained", constraints=[SECOND, THIRD]).score(said("0.5 nan 1", "0.5 0 nan", "0.5 1 1"))
    assert [math.isnan(one) for one in found.tolist()] == [True, True, False]


def test_each_task_has_constraints_of_its_own() -> None:
    tasks = {
        "chat": {"name": "constrained", "reward": WRITTEN, "constraints": [SECOND]},
        "sums": {"name": "constrained", "reward": WRITTEN, "constraints": [THIRD], "broken": "cap", "limit": 0.1},
    }
    reward = build("rewards", {"name": "router", "rewards": tasks})
    texts = ["0.5 1 0", "0.5 0 1", "0.5 1 0", "0.5 0 1"]
    kinds = [{"task": task} for task in ("chat", "chat", "sums", "sums")]
    batch = make_batch(answers(texts).outputs, ["?"] * 4, kinds)
    assert reward.score(batch).tolist() == pytest.approx([0.5, 0, 0.1, 0.5])


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="constraints must hold at least one reward"):
        wrapped("constrained", constraints=[])
    with pytest.raises(ConfigError, match="constraint 0 must judge samples, got one that judges groups"):
        wrapped("constrained", constraints=[{"name": "trusted", "reward": WRITTEN, "accuracy": WRITTEN}])
    with pytest.raises(ConfigError, match="limit: should be a finite number, got nan"):
        wrapped("constrained", constraints=[SECOND], limit=float("nan"))
