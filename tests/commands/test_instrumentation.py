"""Scores of a dry run differ a little by sample, where its reward may differ."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mmrl.commands.instrumentation import JitteredReward
from mmrl.core.contracts import Fitted


class Half:
    """A reward of 0.5 for each sample, or for each of its decisions."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def score(self, batch: Any) -> Tensor:
        return torch.full(self.shape, 0.5)


def jittered(shape: tuple[int, ...]) -> Tensor:
    batch: Any = SimpleNamespace(
        seeds=(1500, 2250), is_decision=torch.tensor([[True, True, False], [True, True, True]])
    )
    reward: JitteredReward = JitteredReward.on(Half(shape))
    return reward.score(batch)


def test_a_score_of_a_sample_differs_by_its_seed() -> None:
    torch.testing.assert_close(jittered((2,)), torch.tensor([0.55, 0.525]))


def test_of_a_dense_reward_the_last_decision_of_each_sample_differs() -> None:
    expected = torch.tensor([[0.5, 0.55, 0.5], [0.5, 0.5, 0.525]])
    torch.testing.assert_close(jittered((2, 3)), expected)


def test_a_fitted_reward_learns_and_is_seen_to_run() -> None:
    class Learning(Half):
        def score_with_examples(self, batch: Any) -> tuple[Tensor, Tensor]:
            return self.score(batch), torch.ones(2, 3)

        def fit(self) -> dict[str, float]:
            return {}

    reward: JitteredReward = JitteredReward.on(Learning((2,)))
    assert isinstance(reward, Fitted) and not isinstance(JitteredReward.on(Half((2,))), Fitted)
    scores, examples = reward.score_with_examples(SimpleNamespace(seeds=(1500, 2250)))  # type: ignore[arg-type]
    torch.testing.assert_close(scores, torch.tensor([0.55, 0.525]))
    assert examples.shape == (2, 3) and len(reward.results["score"]) == 1
