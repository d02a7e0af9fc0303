"""NFT on answers: the paper's formula one decision at a time, and its equality with GRPO on-policy."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.advantages.dr_grpo import DrGrpo as DrGrpoAdvantage
from mmrl.advantages.grpo import Grpo as GrpoAdvantage
from mmrl.core.contracts import LossBatch
from mmrl.losses.grpo import Grpo
from mmrl.losses.nft_tokens import NftTokens
from tests.advantages.scored import scored
from tests.parameters import in_one_test
from tests.ratios import INSIDE, gradient, log_ratios, ragged

REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]  # two groups of 4: an accuracy of 1/2 and one of 1/4
RIGHT = [reward > 0.5 for reward in REWARDS]
GROUP = [0, 0, 0, 0, 1, 1, 1, 1]
TWICE = torch.cat([INSIDE, INSIDE])
ON_POLICY = torch.zeros(TWICE.shape, dtype=torch.float64)
OFF_POLICY = torch.cat([log_ratios(), -1.5 * log_ratios()])
WEIGHTS: dict[str, Callable[[float], float]] = {
    "dr_grpo": lambda p: 1 - p,
    "grpo": lambda p: math.sqrt((1 - p) / p),
    "none": lambda p: 1.0,
}


def _batch(advantage: Any = None, rewards: list[float] = REWARDS) -> LossBatch:
    advantages: Tensor = (advantage or DrGrpoAdvantage())(scored(rewards, GROUP)).double()
    return replace(ragged(advantages, TWICE), scores=torch.tensor(rewards, dtype=torch.float64))


@in_one_test(
    ("prompt_weight", "advantage"),
    [("dr_grpo", DrGrpoAdvantage()), ("grpo", GrpoAdvantage(epsilon=0.0, clip=None))],
)
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_on_policy_its_gradient_is_that_of_grpo(prompt_weight: Any, advantage: Any, epsilon: float) -> None:
    """R-nft_tokens: propositions 4.1 and 4.2, whatever epsilon is."""
    got = gradient(NftTokens(prompt_weight=prompt_weight, epsilon=epsilon), ON_POLICY, _batch())
    expected = gradient(Grpo(clip_low=0.2, clip_high=0.28, normalise="decision"), ON_POLICY, _batch(advantage))
    assert_close(got, expected, rtol=1e-6, atol=1e-9)
    assert (expected[TWICE].abs() > 1e-3).all(), "every decision teaches"


@pytest.mark.parametrize("prompt_weight", ["dr_grpo", "grpo", "none"])
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_values_and_slopes_are_those_of_the_formula_one_decision_at_a_time(prompt_weight: Any, epsilon: float) -> None:
    loss = NftTokens(prompt_weight=prompt_weight, epsilon=epsilon, negative_weight=0.5)
    batch = _batch()
    values, slopes = loss((OFF_POLICY,), batch).terms, gradient(loss, OFF_POLICY, batch) * TWICE.sum()
    num_cut = 0
    for row, column in TWICE.nonzero().tolist():
        p = 0.5 if row < 4 else 0.25
        rho, weight = math.exp(float(OFF_POLICY[row, column])), WEIGHTS[prompt_weight](p)
        if RIGHT[row]:
            expected, slope = -weight * math.log(rho), -weight
        else:
            implicit = (1 - p * rho) / (1 - p)
            cut = max(implicit, epsilon)
            num_cut += cut > implicit
            expected, slope = -weight * 0.5 * math.log(cut), weight * 0.5 * p * rho / (1 - p) / cut
        assert float(values[row, column]) == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert float(slopes[row, column]) == pytest.approx(slope, rel=1e-6)
    assert num_cut > 0 or epsilon < 1, "some wrong answers are cut, and push all the same"


def test_on_policy_any_rewards_between_0_and_1_have_the_gradient_of_dr_grpo() -> None:
    batch = _batch(rewards=[0.9, 0.1, 0.4, 0.6, 1.0, 0.3, 0.0, 0.2])
    expected = gradient(Grpo(clip_low=0.2, clip_high=0.28, normalise="decision"), ON_POLICY, batch)
    assert_close(gradient(NftTokens(), ON_POLICY, batch), expected, rtol=1e-6, atol=1e-9)


def test_a_group_that_is_all_right_or_all_wrong_teaches_nothing() -> None:
    batch = _batch(rewards=[1.0] * 4 + [0.0] * 4)
    for prompt_weight in WEIGHTS:
        loss = NftTokens(prompt_weight=prompt_weight)  # type: ignore[arg-type]
        assert (gradient(loss, OFF_POLICY, batch) == 0).all()


def test_without_wrong_answers_it_is_rejection_fine_tuning() -> None:
    """The negative log-likelihood of the right answers, whatever their old likelihood."""
    got = gradient(NftTokens(prompt_weight="none", negative_weight=0.0), OFF_POLICY, _batch())
    expected = torch.where(TWICE & torch.tensor(RIGHT)[:, None], -1.0, 0.0).double() / TWICE.sum()
    assert_close(got, expected)


def test_a_likelihood_that_rose_without_bound_has_a_finite_gradient() -> None:
    far = torch.full(TWICE.shape, 800.0, dtype=torch.float64)
    assert gradient(NftTokens(), far, _batch()).isfinite().all()


def test_metrics_are_the_accuracy_and_what_is_cut() -> None:
    metrics = NftTokens()((OFF_POLICY,), _batch()).metrics
    assert_close(metrics["accuracy"][:, 0], torch.tensor([0.5] * 4 + [0.25] * 4).double(), rtol=1e-6, atol=0)
    is_cut = torch.tensor([[not right] for right in RIGHT]) & (OFF_POLICY > 0)
    assert (metrics["clip_fraction"][TWICE] == is_cut[TWICE]).all()


@in_one_test(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be above 0"),
        ({"epsilon": 1.5}, "epsilon must be above 0 and at most 1"),
        ({"negative_weight": -1.0}, "negative_weight must be at least 0"),
        ({"prompt_weight": "odds"}, "prompt_weight must be one of dr_grpo, grpo, none"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NftTokens(**settings)
