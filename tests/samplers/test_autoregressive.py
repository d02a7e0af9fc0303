"""Settings of answers, and the plan they become."""

import math
from typing import Any

import pytest

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.plans.answers import AnswerPlan
from tests.parameters import in_one_test

KEY = GroupKey(seed=0, iteration=1, prompt_index=2)


def plan(group_size: int = 8, **settings: Any) -> AnswerPlan:
    sampler = build("samplers", {"name": "autoregressive", "max_tokens": 64, **settings})
    made: AnswerPlan = sampler.plan(None, KEY, group_size)
    return made


def test_it_draws_tokens() -> None:
    assert build("samplers", {"name": "autoregressive", "max_tokens": 1}).sample_kind == "tokens"


def test_without_settings_tokens_are_drawn_from_the_models_own_distribution() -> None:
    assert plan() == AnswerPlan(num_samples=8, max_tokens=64, temperature=1.0, top_p=1.0, top_k=None, min_p=0.0)
    assert (plan().stop, plan().masks_truncated) == ((), False)


def test_every_setting_reaches_the_plan() -> None:
    shaped = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05}
    made = plan(3, max_tokens=5, stop=["</answer>", "\n"], truncated="mask", **shaped)
    assert made == AnswerPlan(3, 5, 0.7, 0.9, 20, 0.05, ("</answer>", "\n"), masks_truncated=True)


def test_calls_are_counted_in_answers_and_the_likeliest_answer_is_no_decision() -> None:
    drawn, likeliest = plan(5), plan(5, temperature=0)
    assert (drawn.num_rollout_calls, drawn.num_update_calls) == (5, 5)
    assert (likeliest.num_rollout_calls, likeliest.num_update_calls) == (5, 0)


@pytest.mark.parametrize(
    "settings", [{"top_p": 1, "min_p": 1}, {"top_k": 1, "min_p": 0}, {"top_p": 1e-9, "top_k": None}]
)
def test_the_ends_of_the_ranges_are_allowed(settings: dict[str, Any]) -> None:
    assert plan(**settings).num_samples == 8


@in_one_test(
    ("settings", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1 and at most 1,000,000, got 0"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 10**9}, "max_tokens must be at least 1 and at most 1,000,000, got 1000000000"),
        ({"controls": 10_001}, "controls must be at least 0 and at most 10,000, got 10001"),
        ({"temperature": -0.1}, "temperature must be at least 0, got -0.1"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": 1e-7}, "temperature must be 0 .*, or at least 1e-06, got 1e-07"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1, got 0"),
        ({"top_p": 1.01}, "top_p must be above 0 and at most 1, got 1.01"),
        ({"top_k": 0}, "top_k must be at least 1, or null, got 0"),
        ({"top_k": -1}, "top_k must be at least 1, or null, got -1"),
        ({"min_p": -0.1}, "min_p must be at least 0 and at most 1, got -0.1"),
        ({"min_p": 1.1}, "min_p must be at least 0 and at most 1, got 1.1"),
        ({"stop": ["a", ""]}, "stop must hold texts to stop at, got an empty text"),
        ({"stop": "</answer>"}, "stop"),
        ({"truncated": "penalise"}, "truncated"),
        ({"top_q": 1}, "has no field 'top_q' .did you mean 'top_"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(**settings)


def test_a_budget_is_needed() -> None:
    with pytest.raises(ConfigError, match="max_tokens is needed"):
        build("samplers", {"name": "autoregressive"})
