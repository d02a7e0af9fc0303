"""The greedy answer of a group is drawn beside it, compared with and never learned from."""

import pytest
import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.views import DecisionView
from mmrl.modalities.tokens.sampling import sample_tokens
from mmrl.plans.answers import AnswerPlan
from mmrl.samplers.autoregressive import Autoregressive
from tests import vision_twins
from tests.vision_twins import PROMPTS, keys


@pytest.mark.slow
@pytest.mark.parametrize("distribution", [{}, {"temperature": 0.7, "top_p": 0.8}], ids=["plain", "cut"])
def test_it_is_the_answer_at_temperature_zero_and_changes_no_other(distribution: dict[str, float]) -> None:
    policy = vision_twins.policy("qwen2_5_vl")
    beside = policy.rollout(PROMPTS[:2], [AnswerPlan(2, 6, has_greedy=True, **distribution)] * 2, keys(2))  # type: ignore[arg-type]
    alone = policy.rollout(PROMPTS[:2], [AnswerPlan(2, 6, **distribution)] * 2, keys(2))  # type: ignore[arg-type]
    cold = policy.rollout(PROMPTS[:2], [AnswerPlan(1, 6, temperature=0.0)] * 2, keys(2))
    assert beside.is_control.tolist() == [False, False, True] * 2
    assert beside.group.tolist() == [0, 0, 0, 1, 1, 1] and len(beside.prompts) == 2, "each prompt is read once"
    texts = beside.outputs.texts
    assert texts is not None
    assert texts[2::3] == cold.outputs.texts
    assert [*texts[0:2], *texts[3:5]] == list(alone.outputs.texts or ())


@pytest.mark.slow
def test_nothing_is_learned_from_it() -> None:
    policy = vision_twins.policy("qwen2_5_vl")
    drawn = policy.rollout(PROMPTS[:2], [AnswerPlan(2, 6, has_greedy=True)] * 2, keys(2))
    assert drawn.blocks[0].weight.any(1).tolist() == [True, True, False] * 2
    view = DecisionView(torch.arange(4))
    torch.testing.assert_close(
        policy.forward(drawn, view).values, policy.recorded(drawn, view).values, rtol=0, atol=1e-5
    )


def test_groups_of_several_sizes_have_one_each() -> None:
    policy = vision_twins.policy("qwen2_5_vl")
    plans = [AnswerPlan(size, 4, has_greedy=True) for size in (1, 3)]
    assert policy.rollout(PROMPTS[:2], plans, keys(2)).is_control.tolist() == [False, True, False, False, False, True]


def test_a_number_below_zero_draws_the_likeliest_token() -> None:
    log_probs = torch.tensor([[0.2, 0.5, 0.3]]).log().expand(3, 3)
    assert sample_tokens(log_probs, torch.tensor([-1.0, 0.1, 0.9], dtype=torch.float64)).tolist() == [1, 0, 2]


def test_the_plan_counts_its_call_and_one_reading() -> None:
    plan = Autoregressive(max_tokens=4, greedy=True).plan(None, keys(1)[0], 8)
    assert (plan.num_samples, plan.num_rollout_calls, plan.num_update_calls, plan.is_bound) == (8, 9, 8, False)
    assert plan.shared_work["prompt_reads"] == 1


def test_two_kinds_of_controls_are_refused_and_so_is_another_engine() -> None:
    with pytest.raises(ValueError, match="controls and greedy exclude each other"):
        Autoregressive(max_tokens=4, greedy=True, controls=2)
    with pytest.raises(ValueError, match="or a greedy one"):
        AnswerPlan(2, 4, num_controls=1, has_greedy=True)
    policy = vision_twins.policy("qwen2_5_vl")
    with pytest.raises(ConfigError, match=r"modality\.engine samples no greedy answer"):
        policy._generate_by_engine(None, [], [], torch.zeros(0), [1, None], AnswerPlan(1, 4))  # type: ignore[arg-type]
