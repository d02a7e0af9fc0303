"""Trees grown by a plan against a slow walk along each sample's own path, with a velocity that needs no network."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.keys import GroupKey, normal, subgroup
from mmrl.modalities.flow.tree_sampling import Tree, sample_trees
from mmrl.plans.flow import Fork, Path, Plan, Step, Transition

SHAPE = (2, 3)
KEYS = [GroupKey(1, 2, draw) for draw in (5, 8)]


def velocity(latents: Tensor, sigma: Tensor, prompt: Tensor) -> Tensor:
    level, shift = sigma.view(-1, 1, 1), prompt.view(-1, 1, 1).float()
    return (latents.float() * (1 - 0.3 * level)).sin() + 0.5 * shift


def random_step(sigma: float, sigma_next: float, branch: int = 1, is_trained: bool = True) -> Step:
    return Step(sigma, sigma_next, Transition(0.9, sigma_next - sigma, 0.2 + sigma / 10), branch, is_trained)


def ode_step(sigma: float, sigma_next: float) -> Step:
    return Step(sigma, sigma_next, Transition(1.0, sigma_next - sigma, 0.0))


LEVELS = [(1.0, 0.8), (0.8, 0.5), (0.5, 0.2), (0.2, 0.0)]
PLANS = [  # two trees of 6 and 3 leaves: their random, trained and branching steps differ
    Plan(1, (random_step(*LEVELS[0], 3), random_step(*LEVELS[1], 2), ode_step(*LEVELS[2]), ode_step(*LEVELS[3]))),
    Plan(
        3, (ode_step(*LEVELS[0]), random_step(*LEVELS[1]), random_step(*LEVELS[2], is_trained=False), ode_step(0.2, 0))
    ),
]


def walk(plan: Plan, key: GroupKey, prompt: int, leaf: int, dtype: torch.dtype) -> dict[str, Any]:
    """The latents of one leaf, step by step; children of a node are neighbours."""
    nodes = [plan.roots]
    for step in plan.steps:
        nodes.append(nodes[-1] * step.branch)
    place = [leaf * count // nodes[-1] for count in nodes]  # of the leaf's node before each step and at the end
    latents = normal(key.seed_for("root"), (plan.roots, *SHAPE))[place[0]].to(dtype)
    decisions = []
    for number, step in enumerate(plan.steps):
        v = velocity(latents[None], torch.tensor([step.sigma]), torch.tensor([prompt]))[0]
        mean = step.transition.state * latents.float() + step.transition.velocity * v
        child = mean
        if step.is_random:
            noise = normal(key.seed_for("step", number), (nodes[number + 1], *SHAPE))[place[number + 1]]
            child = mean + step.transition.std * noise
        child = child.to(dtype)
        if step.is_decision:
            decisions.append((latents, step.sigma, step.transition, mean, child))
        latents = child
    return {"clean": latents, "decisions": decisions}


def test_decisions_tell_how_their_means_follow_a_velocity_and_how_large_their_steps_are() -> None:
    tree = grown(torch.float32)
    calls = torch.arange(len(tree.decided.state))[1:]  # a view without the first state
    said = tree.decided.forward_outputs(tree.block, calls, tree.decided.mean[calls], "mean")
    assert said.velocity is not None and said.step is not None
    torch.testing.assert_close(said.velocity, tree.decided.transition[1:, 1])
    steps = [[step.sigma - step.sigma_next for step in plan.steps if step.is_decision] for plan in PLANS]
    for row, prompt in enumerate(tree.prompt.tolist()):
        for k in range(tree.block.edge.shape[1]):
            is_seen = bool(tree.block.call[row, k] > 0)
            assert float(said.step[row, k]) == pytest.approx(steps[prompt][k] if is_seen else 0.0)


def grown(dtype: torch.dtype) -> Tree:
    return sample_trees(PLANS, KEYS, velocity, SHAPE, torch.empty(0, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_leaf_and_every_decision_is_that_of_a_walk_along_its_own_path(dtype: torch.dtype) -> None:
    tree = grown(dtype)
    assert tree.prompt.tolist() == [0] * 6 + [1] * 3
    assert tree.group.tolist() == [5] * 6 + [8] * 3
    decided, row = tree.decided, 0
    for number, (plan, key) in enumerate(zip(PLANS, KEYS, strict=True)):
        for leaf in range(plan.num_samples):
            path = walk(plan, key, number, leaf, dtype)
            assert tree.clean.dtype == decided.state.dtype == decided.child.dtype == dtype
            torch.testing.assert_close(tree.clean[row], path["clean"])
            count = len(path["decisions"])
            assert (tree.block.call[row, count:] == -1).all() and (tree.block.edge[row, count:] == -1).all()
            for k, (state, sigma, transition, mean, child) in enumerate(path["decisions"]):
                call, edge = int(tree.block.call[row, k]), int(tree.block.edge[row, k])
                assert int(decided.call[edge]) == call and int(decided.prompt[call]) == number
                assert float(decided.sigma[call]) == pytest.approx(sigma)
                numbers = [transition.state, transition.velocity, transition.std]
                assert decided.transition[call].tolist() == pytest.approx(numbers)
                torch.testing.assert_close(decided.state[call], state)
                torch.testing.assert_close(decided.mean[call], mean)
                torch.testing.assert_close(decided.child[edge], child)
            row += 1


def test_a_state_is_recorded_once_and_an_edge_counts_one_in_all() -> None:
    """1 + 3 states of the first group, 3 of the second; 3 + 6 edges and 3."""
    tree = grown(torch.float32)
    assert (len(tree.decided.state), len(tree.decided.child)) == (7, 12)
    assert tree.block.weight.tolist() == [[0.5, 1.0]] * 6 + [[1.0, 0.0]] * 3
    per_edge = torch.zeros(12).index_add(
        0, tree.block.edge[tree.block.edge >= 0], tree.block.weight[tree.block.edge >= 0]
    )
    assert per_edge.tolist() == [1.0] * 12


def test_each_step_and_each_group_has_noise_of_its_own() -> None:
    """z = (child - mean) / std of all edges: no two alike."""
    decided = grown(torch.float32).decided
    std = decided.transition[decided.call, 2].view(-1, 1, 1)
    z = ((decided.child - decided.mean[decided.call]) / std).flatten(1)
    assert torch.cdist(z, z)[~torch.eye(len(z), dtype=torch.bool)].min() > 0.1


def forked(roots: int) -> Plan:
    """A trunk that fans out late; a fan that leaves it at its second step, and two ways on from that fan's children."""
    ways = (
        Fork(1, (ode_step(0.5, 0.1), ode_step(0.1, 0.0)), group=2),
        Fork(2, (random_step(0.2, 0.05, 2), ode_step(0.05, 0.0)), group=3),
    )
    fan = Fork(1, (random_step(*LEVELS[1], 3), ode_step(*LEVELS[2]), ode_step(*LEVELS[3])), ways, group=1)
    trunk = (random_step(*LEVELS[0]), ode_step(*LEVELS[1]), random_step(*LEVELS[2], 2), ode_step(*LEVELS[3]))
    return Plan(roots, trunk, 1.0, (fan,))


FORKED = [forked(2), forked(1)]


def line(paths: tuple[Path, ...], path: Path) -> list[tuple[Path, Step, int, int]]:
    """The steps from a root to the ends of a path: each with the path it belongs to, its tick, the nodes behind it."""
    before = line(paths, paths[path.parent])[: path.start] if path.parent is not None else []
    nodes, steps = path.num_starts, []
    for number, step in enumerate(path.steps):
        nodes *= step.branch
        steps.append((path, step, path.start + number, nodes))
    return [*before, *steps]


def sample_alone(plan: Plan, key: GroupKey, prompt: int, path: Path, leaf: int) -> tuple[Tensor, list[Any]]:
    """One leaf of a path and its decisions, step by step."""
    steps = line(plan.paths, path)
    latents = normal(key.seed_for("root"), (plan.roots, *SHAPE))[leaf * plan.roots // path.num_ends]
    decisions = []
    for owner, step, tick, nodes in steps:
        v = velocity(latents[None], torch.tensor([step.sigma]), torch.tensor([prompt]))[0]
        child = mean = step.transition.state * latents + step.transition.velocity * v
        if step.is_random:
            name: tuple[int | str, ...] = ("fork", *owner.name) if owner.name else ()
            noise = normal(key.seed_for(*name, "step", tick), (nodes, *SHAPE))
            child = mean + step.transition.std * noise[leaf * nodes // path.num_ends]
        if step.is_decision:
            decisions.append((latents, step, tick, mean, child))
        latents = child
    return latents, decisions


@pytest.mark.slow
def test_every_leaf_of_a_forked_plan_is_that_of_its_own_path_alone() -> None:
    calls: list[int] = []

    def counted(latents: Tensor, sigma: Tensor, prompt: Tensor) -> Tensor:
        calls.append(len(latents))
        return velocity(latents, sigma, prompt)

    tree, row = sample_trees(FORKED, KEYS, counted, SHAPE, torch.empty(0)), 0
    assert calls == [sum(nodes) for nodes in zip(*(plan.num_nodes() for plan in FORKED), strict=True)]
    facts = tree.block.facts
    for number, (plan, key) in enumerate(zip(FORKED, KEYS, strict=True)):
        for path in plan.paths:
            for leaf in range(path.num_ends):
                clean, decisions = sample_alone(plan, key, number, path, leaf)
                torch.testing.assert_close(tree.clean[row], clean)
                assert (int(tree.prompt[row]), int(tree.group[row])) == (number, subgroup(key.prompt_index, path.group))
                assert int((tree.block.edge[row] >= 0).sum()) == len(decisions)
                for k, (state, step, tick, mean, child) in enumerate(decisions):
                    call, edge = int(tree.block.call[row, k]), int(tree.block.edge[row, k])
                    torch.testing.assert_close(tree.decided.state[call], state)
                    torch.testing.assert_close(tree.decided.mean[call], mean)
                    torch.testing.assert_close(tree.decided.child[edge], child)
                    known = [tick, step.sigma, step.sigma_next, step.transition.std, abs(step.transition.velocity)]
                    got = [float(facts[name][row, k]) for name in ("step", "sigma", "sigma_next", "std", "jacobian")]
                    assert got == pytest.approx(known)
                    density = torch.distributions.Normal(mean, step.transition.std).log_prob(child).mean()
                    torch.testing.assert_close(facts["log_prob"][row, k], density, atol=1e-5, rtol=1e-5)
                row += 1
    assert row == len(tree.clean) == sum(plan.num_samples for plan in FORKED)
    assert len(tree.decided.state) == sum(plan.num_update_calls for plan in FORKED)
    assert all((values[tree.block.edge < 0] == 0).all() for values in facts.values())


def test_decisions_of_forked_paths_are_shared_and_count_one_in_all() -> None:
    block = sample_trees([forked(1)], KEYS[:1], velocity, SHAPE, torch.empty(0)).block
    edges = block.edge[block.edge >= 0]
    counted = torch.zeros(int(edges.max()) + 1).index_add(0, edges, block.weight[block.edge >= 0])
    torch.testing.assert_close(counted, torch.ones_like(counted))
    assert (block.edge[:, 0] == block.edge[0, 0]).all()  # the first step of the trunk, which all leaves pass


def test_other_groups_change_nothing_of_a_forked_one() -> None:
    both = sample_trees(FORKED, KEYS, velocity, SHAPE, torch.empty(0))
    alone = sample_trees(FORKED[:1], KEYS[:1], velocity, SHAPE, torch.empty(0))
    torch.testing.assert_close(both.clean[both.prompt == 0], alone.clean)
    again = sample_trees(FORKED[::-1], KEYS[::-1], lambda x, s, p: velocity(x, s, 1 - p), SHAPE, torch.empty(0))
    torch.testing.assert_close(again.clean[again.prompt == 1], alone.clean)


def test_ends_of_one_root_are_a_group_of_their_own_where_the_plan_says_so() -> None:
    """Steps that hardly move leave every end beside its root: the nearest root is the one whose group it is in."""
    still, tiny = Transition(1.0, 0.0, 0.0), Transition(1.0, 0.0, 1e-3)
    fan = Fork(0, (Step(1.0, 0.5, tiny, 2), Step(0.5, 0.0, still)), group=1)
    steps = (Step(1.0, 0.5, still), Step(0.5, 0.2, tiny, 3), Step(0.2, 0.0, still))
    plan = Plan(4, steps, forks=(fan,), by_root=True)
    tree = sample_trees([plan] * 2, KEYS, velocity, SHAPE, torch.empty(0))
    for number, key in enumerate(KEYS):
        roots, own = normal(key.seed_for("root"), (4, *SHAPE)), tree.prompt == number
        nearest = (tree.clean[own][:, None] - roots).flatten(2).norm(dim=2).argmin(1).tolist()
        expected = [subgroup(key.prompt_index, root) for root in nearest[:12]]  # the ends of the trunk come first
        expected += [subgroup(key.prompt_index, 4 + root) for root in nearest[12:]]
        assert tree.group[own].tolist() == expected and sorted(nearest[12:]) == sorted([0, 1, 2, 3] * 2)
    beside: Any = object()
    with pytest.raises(ValueError, match="which compare ends of different roots"):
        Plan(4, steps, neighbors=beside, by_root=True)
