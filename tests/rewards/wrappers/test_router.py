"""router by hand."""

import random
from typing import Any

import pytest

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.core.plugins import build
from mmrl.core.reward_batches import Demands
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch
from tests.rewards.inner import SECOND, WRITTEN

SETTINGS: dict[str, Any] = {"rewards": {"first": WRITTEN, "second": SECOND}}


def routed(kinds: list[str], texts: list[str]) -> RewardBatch:
    return make_batch(Outputs(texts=tuple(texts)), ["?"] * len(kinds), [{"task": kind} for kind in kinds])


def mixture(source: random.Random) -> RewardBatch:
    kinds = ["first"] * 4 + ["second"] * 4
    return routed(kinds, [f"{source.choice([0, 1, source.random()])} {source.random()}" for _ in kinds])


EXAMPLE = Example(random_batch=mixture, best=lambda: routed(["first", "second"], ["1 0", "0 1"]), settings=SETTINGS)


def test_each_sample_is_judged_by_the_reward_of_its_kind_in_order() -> None:
    reward = build("rewards", {"name": "router"} | SETTINGS)
    batch = routed(["second", "first", "second", "first"], ["0 0.1", "0.2 0", "0 0.3", "0.4 0"])
    assert reward.score(batch).tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert reward.rewards["first"].scored == ["0.2 0", "0.4 0"]


def test_it_needs_what_all_need_and_checks_each_prompt_by_its_own_reward() -> None:
    inner = {"words": {"name": "exact_answer"}, "spans": {"name": "temporal_iou"}}
    reward = build("rewards", {"name": "router", "by": "kind", "rewards": inner})
    assert reward.needs == {"texts", "target.kind"}
    fault = Demands((("r", reward),)).fault
    assert fault(Prompt("?", target={"kind": "words", "answer": "red"})) is None
    assert fault(Prompt("?", target={"kind": "spans", "span": [1, 2]})) is None
    assert "needs 'span' in the target" in str(fault(Prompt("?", target={"kind": "spans", "answer": "red"})))
    assert "target.kind must be one of spans, words, got 'sums'" in str(fault(Prompt("?", target={"kind": "sums"})))


@in_one_test(
    ("rewards", "message"),
    [
        ({}, "at least one reward"),
        ([WRITTEN], "a section of sections such as"),
        ({"a": "exact_answer"}, r"rewards.router.rewards.a is a section such as \{name: ...\} of rewards"),
        ({"a": WRITTEN, "b": {"name": "episode_success"}}, "must judge alike, got rewards of episode, sample"),
    ],
)
def test_bad_settings_are_refused(rewards: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("rewards", {"name": "router", "rewards": rewards})
