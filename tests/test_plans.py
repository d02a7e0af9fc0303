"""Plans count their network calls; what cannot be drawn is refused."""

import pytest
import torch

from mmrl.plans import Plan, Step, Transition

EULER = Transition(1.0, -0.1, 0.0)
NOISY = Transition(0.9, -0.1, 0.2)


def chain(num_steps: int, branches: dict[int, int], *, random: range = range(0), trained: range | None = None) -> Plan:
    """One root; `branches` says where nodes split; `random` steps have noise, `trained` ones are decisions."""
    steps = []
    for n in range(num_steps):
        noisy = n in branches or n in random
        is_trained = trained is None or n in trained
        levels = (1 - n / num_steps, 1 - (n + 1) / num_steps if n + 1 < num_steps else 0.0)
        steps.append(Step(*levels, NOISY if noisy else EULER, branches.get(n, 1), is_trained))
    return Plan(1, tuple(steps))


def test_a_step_is_linear_in_latents_and_velocity() -> None:
    mean = Transition(0.5, -2.0, 0.1).mean(torch.tensor([2.0, 4.0]), torch.tensor([1.0, 0.25]))
    torch.testing.assert_close(mean, torch.tensor([-1.0, 1.5]))


def test_a_fan_after_a_shared_prefix_calls_the_prefix_once() -> None:
    """T = 10, k = 3 shared steps, G = 24: k + 1 + G (T - k - 1) calls; one state is trained."""
    plan = chain(10, {3: 24})
    assert plan.num_samples == 24
    assert plan.num_nodes() == [1, 1, 1, 1, 24, 24, 24, 24, 24, 24]
    assert (plan.num_rollout_calls, plan.num_update_calls) == (3 + 1 + 24 * 6, 1)


def test_the_branching_tree_of_branchgrpo_makes_203_calls() -> None:
    """T = 20, binary splits at 0, 3, 6, 9: 1 + 3 * 2 + 3 * 4 + 3 * 8 + 10 * 16."""
    plan = chain(20, {0: 2, 3: 2, 6: 2, 9: 2}, random=range(19))
    assert plan.num_samples == 16
    assert plan.num_rollout_calls == 203
    assert plan.num_update_calls == 203 - 16  # the last step of each leaf has no noise


def test_separate_roots_share_nothing() -> None:
    plan = Plan(5, (Step(1.0, 0.5, NOISY), Step(0.5, 0.0, EULER)))
    assert (plan.num_samples, plan.num_rollout_calls, plan.num_update_calls) == (5, 10, 5)


def test_only_trained_random_steps_are_decisions() -> None:
    plan = chain(6, {}, random=range(5), trained=range(2, 6))
    assert [step.is_decision for step in plan.steps] == [False, False, True, True, True, False]
    assert plan.num_update_calls == 3


@pytest.mark.parametrize(("sigma", "sigma_next"), [(0.5, 0.5), (0.4, 0.5), (1.1, 0.5), (0.5, -0.1)])
def test_a_step_must_fall_within_zero_and_one(sigma: float, sigma_next: float) -> None:
    with pytest.raises(ValueError, match="must fall within"):
        Step(sigma, sigma_next, EULER)


def test_a_step_without_noise_cannot_branch() -> None:
    with pytest.raises(ValueError, match="all 2 children would be the same"):
        Step(1.0, 0.5, EULER, branch=2)


def test_a_step_has_a_child() -> None:
    with pytest.raises(ValueError, match="at least one child, got branch 0"):
        Step(1.0, 0.5, NOISY, branch=0)


@pytest.mark.parametrize("std", [-0.1, float("nan")])
def test_a_standard_deviation_is_not_negative(std: float) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        Transition(1.0, 0.0, std)


@pytest.mark.parametrize(("roots", "steps"), [(0, (Step(1.0, 0.0, EULER),)), (1, ())])
def test_a_plan_needs_roots_and_steps(roots: int, steps: tuple[Step, ...]) -> None:
    with pytest.raises(ValueError, match="needs roots and steps"):
        Plan(roots, steps)
