"""threshold by hand."""

import math

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, RewardBatch
from tests.rewards.example import Example
from tests.rewards.inner import WRITTEN, numbers, said, wrapped

EXAMPLE = Example(random_batch=numbers, best=lambda: said("1", "0.9"), settings={"reward": WRITTEN, "threshold": 0.5})


def test_a_score_counts_one_from_the_threshold_on() -> None:
    reward = wrapped("threshold", threshold=0.5)
    assert reward.score(said("0", "0.49", "0.5", "0.51", "1")).tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert reward.range == (0.0, 1.0) and reward.needs == {"texts"} and not reward.differentiable


def test_a_sample_that_was_not_judged_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = wrapped("threshold", threshold=0.5)

    def with_nan(_: object, batch: RewardBatch) -> Tensor:
        return torch.tensor([0.9, math.nan, 0.1])

    monkeypatch.setattr(type(reward.reward), "score", with_nan)
    first, second, third = reward.score(said("0.9", "0.9", "0.1")).tolist()
    assert (first, third) == (1.0, 0.0) and math.isnan(second)


@pytest.mark.parametrize(
    ("threshold", "reason"),
    [(0.0, "every sample scores 1"), (1.5, "every sample scores 0"), (math.inf, "should be a finite number, got inf")],
)
def test_a_threshold_that_makes_a_constant_is_refused(threshold: float, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        wrapped("threshold", threshold=threshold)
