"""Gradients through the sampler against plain loops that autograd differentiates whole."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Outputs, Rollout
from mmrl.core.keys import GroupKey, normal
from mmrl.core.plugins import build
from mmrl.core.views import OutputsView
from mmrl.plans.flow import Fork, Plan, Step, Transition
from tests.linear_flow import LinearFlow, random_flow, sample_rollout, smooth

STEPS, GROUP = 4, 3
TEXTS = (0.3, -0.7)


def chain(*stds: float, branch: tuple[int, ...] = (1, 1, 1, 1), scale: float = 1.0, roots: int = GROUP) -> Plan:
    """Steps of the linear flow's grid with transitions of no special form."""
    levels = pairwise([1 - step / STEPS for step in range(STEPS + 1)])
    steps = [
        Step(sigma, after, Transition(0.9 + 0.05 * n, after - sigma - 0.01 * n, std), branch[n])
        for n, ((sigma, after), std) in enumerate(zip(levels, stds, strict=True))
    ]
    return Plan(roots, tuple(steps), scale)


ODE, SDE = chain(0, 0, 0, 0), chain(0.3, 0.2, 0.4, 0)


def walked(policy: LinearFlow, plan: Plan, text: float, key: GroupKey, row: int, detached: int) -> Tensor:
    """One sample of a plan without branches, step by step; the network's input is cut before the step `detached`."""
    network, latents = policy.network, normal(key.seed_for("root"), (plan.roots, policy.size))[row]
    for number, step in enumerate(plan.steps):
        if number == detached:
            latents = latents.detach()
        told = network.matrix[number] @ latents + network.shift[number] + text
        without = network.matrix[number] @ latents + network.shift[number]
        velocity = without + plan.guidance_scale * (told - without)
        if number < detached:
            velocity = velocity.detach()  # AlignProp's rule: the prediction, not the state
        latents = step.transition.state * latents + step.transition.velocity * velocity
        noise = normal(key.seed_for("step", number), (plan.roots, policy.size))[row] if step.is_random else 0.0
        latents = latents + step.transition.std * noise
    return latents


def gradients(policy: LinearFlow, score: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(score, list(policy.network.parameters())))


def score_of(rollout: Rollout, view: OutputsView, policy: LinearFlow) -> Tensor:
    rendered: Any = policy.forward(rollout, view)
    told = torch.tensor(TEXTS)[rollout.prompt[view.sample]]
    return smooth(rendered.outputs.images, told).sum()


@pytest.mark.parametrize("num_steps", [1, 2, 4])
@pytest.mark.parametrize("plan", [ODE, SDE, chain(0.3, 0, 0.4, 0, scale=3.0)])
@pytest.mark.parametrize("saves", [True, False])
def test_the_gradient_through_the_last_steps_is_that_of_a_plain_loop(plan: Plan, num_steps: int, saves: bool) -> None:
    """With as many steps as the sampler has it is full backpropagation."""
    policy = random_flow(recompute_activations=saves)
    rollout = sample_rollout(policy, plan)
    got = gradients(policy, score_of(rollout, OutputsView(torch.arange(6), num_steps), policy))
    total = torch.zeros(())
    for row in range(6):
        prompt = row // GROUP
        media = walked(policy, plan, TEXTS[prompt], rollout.keys[prompt], row % GROUP, STEPS - num_steps)
        torch.testing.assert_close(media, rollout.outputs.images[row], atol=1e-5, rtol=1e-5)  # type: ignore[index]
        total = total + smooth(media[None], torch.tensor([TEXTS[prompt]])).sum()
    torch.testing.assert_close(got, gradients(policy, total), atol=1e-5, rtol=1e-4)
    detached = got[0][: STEPS - num_steps]
    assert (detached == 0).all() and (got[0][STEPS - num_steps :] != 0).any()


@pytest.mark.parametrize("latent_dtype", ["float32", "bfloat16"])
def test_under_the_weights_that_drew_them_samples_are_drawn_again(latent_dtype: str) -> None:
    policy = random_flow(latent_dtype=latent_dtype)
    rollout = sample_rollout(policy, SDE)
    for num_steps in (1, 3, 4):
        rendered: Any = policy.forward(rollout, OutputsView(torch.tensor([4, 1]), num_steps))
        torch.testing.assert_close(rendered.outputs.images, rollout.outputs.images[[4, 1]], atol=1e-6, rtol=1e-6)  # type: ignore[index]


def test_a_step_left_out_gives_the_clean_latents_that_the_last_prediction_implies() -> None:
    policy = random_flow()
    rollout = sample_rollout(policy, SDE)
    rendered: Any = policy.forward(rollout, OutputsView(torch.tensor([5]), 1, left_out=2))
    trajectory = rollout.trace.trajectory
    state = trajectory.state[trajectory.node[5, 1]]  # before the second of four steps, at sigma 3/4
    velocity = policy.network.matrix[1] @ state + policy.network.shift[1] + TEXTS[1]
    torch.testing.assert_close(rendered.outputs.images[0], state - 0.75 * velocity)
    got = gradients(policy, rendered.outputs.images.sum())
    assert (got[1][1] != 0).all() and (got[1][[0, 2, 3]] == 0).all()


def test_entries_noised_anew_start_from_the_sample_itself() -> None:
    policy = random_flow()
    rollout = sample_rollout(policy, ODE)
    view = OutputsView(
        torch.tensor([2, 2]), 1, noise_sample=torch.tensor([1, 2]), num_noise_samples=3, noise_seed=(7, 8)
    )
    rendered: Any = policy.forward(rollout, view)
    for entry, seed in enumerate((7, 8)):
        noisy = 0.75 * rollout.trace.clean[2] + 0.25 * normal(seed, (2,))
        velocity = policy.network.matrix[3] @ noisy + policy.network.shift[3] + TEXTS[0]
        step = ODE.steps[3].transition
        torch.testing.assert_close(rendered.outputs.images[entry], step.state * noisy + step.velocity * velocity)
    assert rendered.spread(torch.tensor([5.0, 6.0])).tolist() == [[0] * 3] * 2 + [[0, 5, 6]] + [[0] * 3] * 3


TREE = chain(0.3, 0.2, 0.4, 0, branch=(2, 1, 2, 1), roots=1)
FORKED = Plan(2, ODE.steps, forks=(Fork(1, SDE.steps[1:]), Fork(2, SDE.steps[2:])))


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "calls"), [(TREE, [4, 6, 8, 9]), (FORKED, [6, 10, 12, 14])])
def test_samples_of_a_tree_share_the_calls_behind_states_that_they_share(plan: Plan, calls: list[int]) -> None:
    policy = random_flow()
    rollout = sample_rollout(policy, plan, ("0.3",))
    everyone = torch.arange(rollout.num_samples)
    for num_steps, expected in enumerate(calls, 1):
        before = policy.num_calls
        together = gradients(policy, score_of(rollout, OutputsView(everyone, num_steps), policy))
        assert policy.num_calls - before == expected
        alone = [gradients(policy, score_of(rollout, OutputsView(row[None], num_steps), policy)) for row in everyone]
        torch.testing.assert_close(together, [sum(parts) for parts in zip(*alone, strict=True)], atol=1e-5, rtol=1e-4)


def test_guidance_costs_two_evaluations_a_step_also_where_activations_are_computed_again() -> None:
    policy = random_flow()
    rollout = sample_rollout(policy, chain(0, 0, 0, 0, scale=3.0))
    before = policy.num_calls
    score_of(rollout, OutputsView(torch.arange(6), 3), policy).backward()
    assert policy.num_calls - before == 2 * 6 * 3


def test_looking_back_further_than_the_samples_go_is_refused() -> None:
    policy = random_flow()
    rollout = sample_rollout(policy, ODE)
    with pytest.raises(ConfigError, match="looks back 5 steps, but the samples have fewer steps"):
        policy.forward(rollout, OutputsView(torch.arange(2), 3, left_out=2))


def test_joined_rollouts_render_like_one() -> None:
    policy = random_flow()
    whole = sample_rollout(policy, SDE)
    sampler = build("samplers", {"name": "ode", "num_steps": 2})
    short = policy.rollout(whole.prompts[:1], [sampler.plan(policy, whole.keys[0], 2)], whole.keys[:1])
    joined = Rollout.join([short, whole])
    for num_steps in (1, 2):
        rendered: Any = policy.forward(joined, OutputsView(torch.tensor([1, 2, 6]), num_steps))
        expected = torch.stack([short.outputs.images[1], whole.outputs.images[0], whole.outputs.images[4]])  # type: ignore[index]
        torch.testing.assert_close(rendered.outputs.images, expected, atol=1e-6, rtol=1e-6)
    with pytest.raises(ConfigError, match="fewer"):
        policy.forward(joined, OutputsView(torch.tensor([1, 2]), 3))


def test_states_are_kept_only_where_they_are_asked_for() -> None:
    policy = random_flow()
    policy.records_trajectories = False
    assert sample_rollout(policy, SDE).trace.trajectory is None


# Gradients carried back to what was drawn.


def carried(policy: LinearFlow, rollout: Rollout, rows: Tensor | None = None, size: int = 100) -> Tensor:
    def score(outputs: Outputs, samples: Tensor) -> Tensor:
        assert outputs.images is not None
        return smooth(outputs.images, torch.tensor(TEXTS)[rollout.prompt[samples]])

    rows = torch.arange(rollout.num_samples) if rows is None else rows
    gradient: Tensor = policy.differentiate(rollout, rows, score, size).trace.gradient
    return gradient


@pytest.mark.parametrize("size", [1, 4, 100])
def test_with_a_linear_drift_the_carried_gradient_is_a_product_of_matrices(size: int) -> None:
    policy = random_flow()
    rollout = sample_rollout(policy, SDE)
    found, edge = carried(policy, rollout, size=size), rollout.blocks[0].edge
    for row in range(6):
        media = rollout.outputs.images[row]  # type: ignore[index]
        gradient = media.cos() + TEXTS[row // GROUP] * media / 2
        for number in (3, 2, 1):
            if number < 3:  # the last step draws nothing
                torch.testing.assert_close(found[edge[row, number]], gradient, atol=1e-5, rtol=1e-5)
            step = SDE.steps[number].transition
            jacobian = step.state * torch.eye(2) + step.velocity * policy.network.matrix[number]
            gradient = jacobian.T @ gradient
        torch.testing.assert_close(found[edge[row, 0]], gradient, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_shared_latents_get_the_mean_of_the_gradients_of_their_samples() -> None:
    policy = random_flow()
    rollout = sample_rollout(policy, TREE, ("0.3",))
    before = policy.num_calls
    found, block = carried(policy, rollout), rollout.blocks[0]
    assert policy.num_calls - before == 4 + 2 + 2  # the states behind the first decision
    for number in range(3):
        for edge in block.edge[:, number].unique().tolist():
            leaves = (block.edge[:, number] == edge).nonzero().squeeze(1)
            each = torch.zeros(2)
            for row in leaves.tolist():
                alone = carried(policy, rollout, torch.tensor([row]))
                each = each + alone[edge] / len(leaves)
            torch.testing.assert_close(found[edge], each, atol=1e-5, rtol=1e-5)


def test_a_forks_states_carry_what_both_ways_say() -> None:
    """Both ways leave a state by steps of their own; one call serves both, and it is planned."""
    from mmrl.assembly.costs import gradient_calls
    from mmrl.losses.adjoint_matching import AdjointMatching

    random_trunk = Plan(2, SDE.steps, forks=(Fork(2, ODE.steps[2:]),))
    policy = random_flow()
    rollout = sample_rollout(policy, random_trunk, ("0.3",))
    before = policy.num_calls
    found = carried(policy, rollout)
    assert policy.num_calls - before == gradient_calls(AdjointMatching(), random_trunk) == 2 + 2 + 4
    first = rollout.blocks[0].edge[:, 0]  # the trunk's two samples, then the fork's
    assert first.tolist()[:2] == first.tolist()[2:]
    for row in range(2):
        each = [carried(policy, rollout, torch.tensor([leaf]))[first[row]] for leaf in (row, row + 2)]
        torch.testing.assert_close(found[first[row]], (each[0] + each[1]) / 2, atol=1e-5, rtol=1e-5)


def test_ways_on_of_different_lengths_meet_in_the_states_that_they_share() -> None:
    """A draw that a fine and a coarse way follow gets the mean of what both say, and one call behind it."""
    from mmrl.assembly.costs import gradient_calls
    from mmrl.losses.adjoint_matching import AdjointMatching

    coarse = Step(0.5, 0.0, Transition(0.9, -0.5, 0.0))
    plan = Plan(2, chain(0.3, 0, 0, 0).steps, forks=(Fork(2, (coarse,)),))
    policy = random_flow()
    rollout = sample_rollout(policy, plan, ("0.3",))
    before = policy.num_calls
    found = carried(policy, rollout)
    assert policy.num_calls - before == gradient_calls(AdjointMatching(), plan) == 2 + 2 + 2
    for row in range(2):
        edge = int(rollout.blocks[0].edge[row, 0])
        assert edge == int(rollout.blocks[0].edge[row + 2, 0])
        each = [carried(policy, rollout, torch.tensor([leaf]))[edge] for leaf in (row, row + 2)]
        assert not torch.allclose(each[0], each[1])
        torch.testing.assert_close(found[edge], (each[0] + each[1]) / 2, atol=1e-5, rtol=1e-5)


def test_samples_that_take_no_part_get_no_gradient_and_cost_nothing() -> None:
    policy = random_flow()
    rollout = sample_rollout(policy, SDE)
    before = policy.num_calls
    found, edge = carried(policy, rollout, torch.tensor([1, 5])), rollout.blocks[0].edge
    assert policy.num_calls - before == 2 * 3
    assert (found[edge[[0, 2, 3, 4]]] == 0).all() and (found[edge[[1, 5]]] != 0).all()
