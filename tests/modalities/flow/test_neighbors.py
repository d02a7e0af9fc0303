"""Groups of neighbours against a slow walk of each member alone, and what an update of them calls."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import GroupKey, normal
from mmrl.core.views import DecisionView
from mmrl.modalities.flow.solvers import Solver
from mmrl.modalities.flow.tree_sampling import Tree, sample_trees
from mmrl.plans.flow import Neighbors, Plan, Step, Tail, Transition
from mmrl.samplers.neighbor import Neighbor
from mmrl.samplers.ode import ODE
from tests.linear_flow import random_flow, sample_rollout

SHAPE, GRID = (2, 3), (1.0, 0.8, 0.5, 0.2, 0.0)
WAYS = list(pairwise(GRID))
KEYS = [GroupKey(1, 2, draw) for draw in (5, 8, 9)]


def velocity(latents: Tensor, sigma: Tensor, prompt: Tensor) -> Tensor:
    level, shift = sigma.view(-1, 1, 1), prompt.view(-1, 1, 1).float()
    return (latents.float() * (1 - 0.3 * level)).sin() + 0.5 * shift


def step(number: int, std: float = 0.0) -> Step:
    sigma, sigma_next = WAYS[number]
    return Step(sigma, sigma_next, Transition(1.0, sigma_next - sigma, std))


def plan(roots: int, anchors: tuple[int, ...], calls: tuple[int, ...], solver: str | None = None) -> Plan:
    near = Neighbors(0.4, anchors, tuple((number, step(number, 0.7)) for number in calls))
    tail = None if solver is None else Tail(solver, GRID)  # type: ignore[arg-type]
    return Plan(roots, () if tail else tuple(step(n) for n in range(4)), tail=tail, neighbors=near)


def ways(plan: Plan, key: GroupKey, prompt: int, dtype: torch.dtype) -> list[list[Tensor]]:
    """The states of each member, from its noise to its end."""
    base, own = normal(key.seed_for("base"), SHAPE), normal(key.seed_for("root"), (plan.roots, *SHAPE))
    found = []
    for member in range(plan.roots):
        states, solver = [((1 - 0.4**2) ** 0.5 * base + 0.4 * own[member]).to(dtype)], None
        if plan.tail is not None:
            solver = Solver(plan.tail)
        for sigma, sigma_next in WAYS:
            x = states[-1]
            v = velocity(x[None], torch.tensor([sigma]), torch.tensor([prompt]))[0]
            moved = x.float() + (sigma_next - sigma) * v if solver is None else solver(x[None], v[None])[0]
            states.append(moved.to(dtype))
        found.append(states)
    return found


def check_group(tree: Tree, plan: Plan, number: int, dtype: torch.dtype, wide: int) -> None:
    """Every member stands, step by step and anchor by anchor, beside where that anchor would be next."""
    states, near, rows = ways(plan, KEYS[number], number, dtype), plan.neighbors, tree.prompt == number
    assert near is not None
    clean, call, edge = tree.clean[rows], tree.block.call[rows], tree.block.edge[rows]
    for member in range(plan.roots):
        assert_close(clean[member], states[member][-1])
        beside = [(n, anchor) for n, _ in near.moves for anchor in near.anchors]
        assert (edge[member, len(beside) :] == -1).all() and edge.shape[1] == wide
        for column, (n, anchor) in enumerate(beside):
            at, drawn_as = int(call[member, column]), int(edge[member, column])
            state = states[anchor][n]
            sigma, sigma_next = WAYS[n]
            v = velocity(state[None], torch.tensor([sigma]), torch.tensor([number]))[0]
            assert int(tree.decided.call[drawn_as]) == at and int(tree.decided.prompt[at]) == number
            assert_close(tree.decided.state[at], state)
            assert_close(tree.decided.mean[at], state.float() + (sigma_next - sigma) * v)
            assert_close(tree.decided.child[drawn_as], states[member][n + 1])
            facts = {name: float(values[rows][member, column]) for name, values in tree.block.facts.items()}
            told = {"step": n, "sigma": sigma, "sigma_next": sigma_next, "std": 0.7, "jacobian": sigma - sigma_next}
            assert {name: facts[name] for name in told} == pytest.approx(told)


@pytest.mark.parametrize("solver", [None, "dpmpp_2m", "unipc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_member_stands_beside_where_its_anchors_would_be_next(solver: str | None, dtype: torch.dtype) -> None:
    """Groups of unlike sizes, anchors and steps side by side, and one without neighbours."""
    plans = [
        plan(4, (1, 3), (0, 2), solver),
        plan(3, (0,), (1, 2, 3), solver),
        Plan(2, tuple(step(n) for n in range(4))),
    ]
    tree = sample_trees(plans, KEYS, velocity, SHAPE, torch.empty(0, dtype=dtype))
    assert tree.prompt.tolist() == [0] * 4 + [1] * 3 + [2] * 2
    assert (len(tree.decided.state), len(tree.decided.child)) == (2 * 2 + 3, 4 * 4 + 3 * 3)
    for number in (0, 1):
        check_group(tree, plans[number], number, dtype, wide=4)
    assert (tree.block.edge[7:] == -1).all()
    assert torch.equal(tree.block.weight, (tree.block.edge >= 0).float())


def test_other_groups_change_nothing() -> None:
    both = sample_trees([plan(4, (1, 3), (0, 2)), plan(3, (0,), (1,))], KEYS[:2], velocity, SHAPE, torch.empty(0))
    alone = sample_trees([plan(4, (1, 3), (0, 2))], KEYS[:1], velocity, SHAPE, torch.empty(0))
    assert torch.equal(both.clean[:4], alone.clean)
    edges = both.block.edge[:4]
    assert torch.equal(both.decided.child[edges], alone.decided.child[alone.block.edge])
    assert torch.equal(both.decided.mean[both.block.call[:4]], alone.decided.mean[alone.block.call])


def test_a_spread_of_one_draws_the_samples_of_ode_and_of_none_the_same_for_all() -> None:
    """R-neighbor-ode."""
    policy, key = random_flow(), GroupKey(5, 0, 0)
    settings: dict[str, Any] = {"num_steps": 4, "sigmas": "uniform"}
    plans = [Neighbor(**settings, spread=1.0), ODE(**settings), Neighbor(**settings, spread=0.0)]
    near, ode, same = (sample_rollout(policy, sampler.plan(policy, key, 3)).trace.clean for sampler in plans)
    assert torch.equal(near, ode)
    assert torch.equal(same[:3], same[:1].expand(3, -1)) and not torch.equal(same[0], same[3])


def rollout_of(policy: Any, guidance_scale: float = 1.0) -> tuple[Plan, Rollout]:
    sampler = Neighbor(num_steps=4, sigmas="uniform", anchors=2, guidance_scale=guidance_scale)
    plan = sampler.plan(policy, GroupKey(5, 0, 0), 4)
    return plan, policy.rollout([Prompt("red circle top left")], [plan], [GroupKey(5, 0, 0)])


@pytest.mark.slow
@pytest.mark.parametrize("guidance_scale", [1.0, 2.0])
def test_a_network_makes_the_calls_that_are_planned(guidance_scale: float, lab_policy: Any) -> None:
    policy = lab_policy()
    plan, rollout = rollout_of(policy, guidance_scale)
    assert policy.num_calls == rollout.num_calls == plan.num_rollout_calls * plan.forwards_per_call
    calls = torch.arange(4)
    policy.forward(rollout, DecisionView(calls))
    assert policy.num_calls - rollout.num_calls == plan.num_update_calls * plan.forwards_per_call
    assert torch.unique(rollout.blocks[0].call).tolist() == calls.tolist()


@pytest.mark.slow
def test_evaluated_again_under_the_same_weights_the_decisions_are_the_recorded_ones(lab_policy: Any) -> None:
    policy = lab_policy()
    _, rollout = rollout_of(policy)
    with torch.no_grad():
        again = policy.forward(rollout, DecisionView(torch.arange(4)))
    recorded = policy.recorded(rollout, DecisionView(torch.arange(4)))
    assert_close(again.mean, recorded.mean)
    assert_close(again.choice_log_ratio(recorded), torch.zeros(4, 4), atol=1e-5, rtol=0)
    assert_close(rollout.blocks[0].facts["log_prob"], recorded.log_prob())
