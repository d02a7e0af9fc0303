"""Plans count their network calls; what cannot be drawn is refused."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmrl.assembly.compatibility import example_plan
from mmrl.core.contracts import ConfigError
from mmrl.plans.flow import Fork, Plan, Step, Transition
from mmrl.samplers.dance_sde import DanceSDE
from tests.parameters import in_one_test

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


@in_one_test(("sigma", "sigma_next"), [(0.5, 0.5), (0.4, 0.5), (1.1, 0.5), (0.5, -0.1)])
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


def levels(*sigmas: float, random: bool = False, branch: int = 1) -> tuple[Step, ...]:
    """Steps between these levels, of which the first may be random."""
    first, *rest = itertools.pairwise(sigmas)
    noisy = Step(*first, NOISY if random else EULER, branch)
    return (noisy, *(Step(*pair, EULER) for pair in rest))


def forked() -> Plan:
    """Two roots and five steps; three children leave at the second step, and coarser ways leave these at theirs."""
    coarse = Fork(1, levels(0.6, 0.2, 0.0), group=2)
    fan = Fork(1, levels(0.8, 0.6, 0.4, 0.2, 0.0, random=True, branch=3), (coarse,), group=1)
    return Plan(
        2, (*levels(1.0, 0.8), *levels(0.8, 0.6), *levels(0.6, 0.4, 0.2, 0.0, random=True, branch=2)), 1.0, (fan,)
    )


def test_the_paths_of_a_forked_plan() -> None:
    trunk, fan, coarse = forked().paths
    assert [(path.parent, path.start, path.end, path.num_starts, path.num_ends) for path in (trunk, fan, coarse)] == [
        (None, 0, 5, 2, 4),
        (0, 1, 5, 2, 6),
        (1, 2, 4, 6, 6),
    ]
    assert [(path.group, path.name) for path in (trunk, fan, coarse)] == [(0, ()), (1, (0,)), (2, (0, 0))]
    assert fan.num_nodes() == [2, 6, 6, 6]


def test_a_fork_makes_no_call_where_it_leaves() -> None:
    """Trunk 2 2 2 4 4; the fan 6 6 6 behind its first step; the coarse way 6 behind its own."""
    plan = forked()
    assert plan.num_nodes() == [2, 2, 2 + 6, 4 + 6 + 6, 4 + 6]
    assert (plan.num_samples, plan.num_rollout_calls, plan.num_update_calls, plan.num_tree_steps) == (16, 38, 2 + 2, 5)
    assert plan.shared_work == {"calls of a rollout without sharing": 4 * 5 + 6 * 5 + 6 * 4}


def test_a_plan_may_end_after_its_own_path() -> None:
    plan = Plan(1, levels(1.0, 0.0), forks=(Fork(0, levels(1.0, 0.7, 0.4, 0.0)),))
    assert (plan.num_tree_steps, plan.num_nodes()) == (3, [1, 1, 1])


@in_one_test(
    ("make", "message"),
    [
        (lambda: Fork(0, ()), "a fork needs steps"),
        (lambda: Fork(0, levels(1.0, 0.0), group=-1), "numbered from 0, got -1"),
        (lambda: Plan(1, levels(1.0, 0.0), forks=(Fork(1, levels(1.0, 0.0)),)), "one of its steps 0 to 0, got at 1"),
        (lambda: Plan(1, levels(1.0, 0.0), forks=(Fork(-1, levels(1.0, 0.0)),)), "got at -1"),
        (lambda: Fork(0, levels(1.0, 0.5, 0.0), (Fork(0, levels(1.0, 0.0)),)), "one of its steps 1 to 1, got at 0"),
        (
            lambda: Plan(1, levels(1.0, 0.0), forks=(Fork(0, levels(0.9, 0.0)),)),
            "at sigma 1.0 must begin there, got sigma 0.9",
        ),
        (
            lambda: Plan(1, levels(1.0, 0.5, 0.0, random=True), forks=(Fork(0, levels(1.0, 0.4, 0.0, random=True)),)),
            "two trained random steps leave the states at sigma 1.0",
        ),
    ],
)
def test_forks_that_leave_no_state_of_their_path_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_noise_that_float32_would_lose_is_refused() -> None:
    with pytest.raises(ValueError, match="standard deviation 1e-30, is too small for float32"):
        Transition(1.0, -0.1, 1e-30)
    assert torch.tensor(Transition(1.0, -0.1, 1e-15).std).square() > 0


class _Latents:
    sample_kind = "latents"


def test_noise_beyond_all_numbers_is_the_users_mistake() -> None:
    policy, sampler = _Latents(), DanceSDE(num_steps=4, noise_level=1e300)
    parts: tuple[Any, ...] = (sampler, 2, policy)
    with pytest.raises(ConfigError, match="the sampler cannot plan a group of 2"):
        example_plan(*parts)
