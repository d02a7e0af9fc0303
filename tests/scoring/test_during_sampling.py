"""Samplers that steer, as parts of a run: what is refused when a config is loaded."""

import pytest

from mmrl.assembly.build import build
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError
from tests.parameters import in_one_test

BLIND = "{name: best_of_n, reward: {name: exact_answer}, proposal: {name: ode, num_steps: 4}}"


@in_one_test(
    ("name", "override", "message"),
    [
        ("lab/fk_steering", "loss={name: grpo}", "learns from random steps, sampler 'fk_steering' makes none"),
        ("lab/best_of_n", f"evaluation.sampler={BLIND}", r"reward 'evaluation\.sampler\.reward' needs"),
        ("lab/best_of_n", f"sampler={BLIND}", r"reward 'sampler\.reward' needs|exact_answer|ExactAnswer"),
        (
            "lab/best_of_n",
            "sampler.proposal={name: nowhere}",
            r"samplers\.best_of_n\.proposal: unknown sampler 'nowhere'",
        ),
        ("lab/best_of_n", "sampler.reward=shapes", r"samplers\.best_of_n\.reward is a section such as"),
        ("lab/draft", "sampler={name: ode, num_steps: 8, solver: heun}", "which lead through no solver and no choice"),
    ],
)
def test_what_cannot_work_is_refused_at_load(name: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(load_config(name, [override]))


@pytest.mark.parametrize("name", ["fk_steering", "svdd", "best_of_n"])
def test_a_steered_run_builds_with_its_reward_and_proposal(name: str) -> None:
    parts = build(load_config(f"lab/{name}"))
    assert parts.sampler.reward.measure == "graded"  # type: ignore[attr-defined]
    assert parts.evaluation is not None and list(parts.evaluation.also) == ["steered"]
