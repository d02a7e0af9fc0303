"""Rewards whose sums float32 cannot reckon with, and rewards that try to end the run."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, RewardBatch, RunError
from mmrl.core.plugins import build
from mmrl.scoring.scorer import RewardTerm, Scorer
from tests.parameters import in_one_test
from tests.scripted_reward import ScriptedReward, rollout


def scorer(*values: float, weight: float = 1.0, share: float = 1.0) -> Scorer:
    reward: Any = ScriptedReward(lambda batch: torch.tensor(values))
    return Scorer((RewardTerm("a", reward, weight),), share)


@in_one_test("weight", [1e39, 1e19, -1e30, float("inf")])
def test_a_weight_beyond_float32_is_refused(weight: float) -> None:
    with pytest.raises(ConfigError, match=r"must be a finite number of at most 1e\+18"):
        scorer(0.0, weight=weight)


@pytest.mark.parametrize("large", [3e38, -3e38, 1e19])
def test_a_sum_that_is_too_large_is_a_failed_sample(large: float) -> None:
    judgement = scorer(0.0, large, 1.0, 1e15).judge(rollout(), 0)
    assert judgement.scores.valid.tolist() == [True, False, True, True]
    assert judgement.first_failures == (f"the weighted sum of the rewards is {torch.tensor(large).item():g}",)
    with pytest.raises(RunError, match=r"1 of 4 samples could not be judged.*the weighted sum of the rewards is"):
        scorer(0.0, large, 1.0, 1e15, share=0.1).score(rollout(), 0)


def test_a_total_may_be_too_large_where_no_weight_is_above_0() -> None:
    reward: Any = ScriptedReward(lambda batch: torch.zeros(len(batch)))
    terms = (RewardTerm("a", reward, 0.0), RewardTerm("b", reward, 0.0))
    gate = build("mixes", {"name": "gate", "by": "b", "otherwise": 1e19})
    judgement = Scorer(terms, 1.0, gate).judge(rollout(), 0)
    assert not judgement.scores.valid.any()
    assert judgement.first_failures == ("the weighted sum of the rewards is 1e+19", None)


def test_a_weight_may_make_a_sum_too_large() -> None:
    assert scorer(0.0, 1e10, 1.0, 2.0, weight=1e10).judge(rollout(), 0).scores.valid.tolist() == [
        True,
        False,
        True,
        True,
    ]


def test_a_reward_that_ends_the_process_could_not_judge() -> None:
    def leave(batch: RewardBatch) -> Tensor:
        sys.exit("bye")

    reward: Any = ScriptedReward(leave)
    judgement = Scorer((RewardTerm("a", reward),), 1.0).judge(rollout(), 0)
    assert not judgement.scores.valid.any()
    assert str(judgement.first_failures[0]).startswith("a: SystemExit: bye")
