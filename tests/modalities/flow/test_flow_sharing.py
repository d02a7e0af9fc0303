"""What a group shares is computed once, and nothing but the cost changes."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import GroupKey, normal, subgroup
from mmrl.core.views import DecisionView
from mmrl.modalities.sd3 import StableDiffusion3
from mmrl.plans.flow import Fork, Plan, Step, Transition
from mmrl.samplers.base.window import Window
from mmrl.samplers.flow_sde import FlowSDE
from mmrl.samplers.ode import ODE

PROMPTS = [Prompt("red circle top left"), Prompt("blue cross middle right")]
STEPS, GROUP = 6, 4


def count_elements(policy: StableDiffusion3) -> list[int]:
    """Batch elements of each call of the transformer from now on."""
    seen: list[int] = []

    def note(module: Any, args: Any, kwargs: Any) -> None:
        seen.append(len(kwargs["hidden_states"]))

    policy.modules()["transformer"].register_forward_pre_hook(note, with_kwargs=True)
    return seen


def sample_images(
    policy: StableDiffusion3, sampler: Any, prompts: list[Prompt] = PROMPTS, group: int = GROUP
) -> Rollout:
    keys = [GroupKey(7, 0, n) for n in range(len(prompts))]
    return policy.rollout(prompts, [sampler.plan(policy, key, group) for key in keys], keys)


def single_step(first: int) -> FlowSDE:
    """One random step after an ODE prefix of `first` steps from one shared root."""
    window = Window(mode="range", first=first, last=first + 1)
    return FlowSDE(num_steps=STEPS, sigmas="uniform", share_noise=True, window=window)


def all_calls(rollout: Rollout) -> DecisionView:
    calls = rollout.blocks[0].call
    return DecisionView(torch.unique(calls[calls >= 0]))


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 2])
def test_a_shared_prefix_costs_k_plus_1_plus_g_times_the_rest_and_its_update_one_call(
    lab_policy: Any, first: int
) -> None:
    policy = lab_policy()
    seen = count_elements(policy)
    rollout = sample_images(policy, single_step(first))
    per_group = first + 1 + GROUP * (STEPS - first - 1)
    assert sum(seen) == len(PROMPTS) * per_group == rollout.num_calls
    seen.clear()
    policy.forward(rollout, all_calls(rollout))
    assert seen == [len(PROMPTS)]  # exactly one element for each group


@pytest.mark.slow
def test_without_sharing_every_member_pays_for_every_step(lab_policy: Any) -> None:
    policy = lab_policy()
    seen = count_elements(policy)
    rollout = sample_images(policy, FlowSDE(num_steps=STEPS, sigmas="uniform"))
    assert sum(seen) == len(PROMPTS) * GROUP * STEPS
    seen.clear()
    policy.forward(rollout, all_calls(rollout))
    assert sum(seen) == len(PROMPTS) * GROUP * (STEPS - 1)


def naive_gradient(
    policy: StableDiffusion3, rollout: Rollout, advantages: Tensor, first: int, noise: float
) -> dict[str, Tensor]:
    """-mean of A log p by a plain loop: each member's own forward pass, Flow-SDE written out, torch's own Normal."""
    decided = rollout.trace.decided
    sigma = 1 - first / STEPS
    sigma_next, sigma_1 = 1 - (first + 1) / STEPS, 1 - 1 / STEPS
    g = noise * (sigma / (1 - min(sigma, sigma_1))) ** 0.5
    h = sigma - sigma_next
    loss = torch.zeros(())
    for row in range(rollout.num_samples):
        prompt = int(rollout.prompt[row])
        state = decided.state[prompt : prompt + 1]
        conditioning = policy.conditioning([PROMPTS[prompt].text])
        velocity = policy.velocity(state, torch.tensor([sigma]), conditioning)
        eps = state + (1 - sigma) * velocity
        mean = state - h * velocity - g**2 / (2 * sigma) * eps * h
        chosen = decided.child[row : row + 1]
        log_prob = torch.distributions.Normal(mean, g * h**0.5).log_prob(chosen).mean()
        loss = loss - advantages[row] * log_prob / rollout.num_samples
    parameters = policy.weights.parameters
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return dict(zip(parameters, gradients, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 2])
def test_the_gradient_of_a_shared_state_is_that_of_the_naive_g_fold_update(lab_policy: Any, first: int) -> None:
    policy = lab_policy()
    rollout = sample_images(policy, single_step(first))
    advantages = torch.linspace(-1.3, 2.1, rollout.num_samples)
    decisions = policy.forward(rollout, all_calls(rollout))
    ratio = decisions.log_ratio(decisions.detach()).exp()
    assert torch.equal(ratio, torch.ones_like(ratio))
    (-(advantages[:, None] * ratio)).mean().backward()
    naive = naive_gradient(policy, rollout, advantages, first, 0.7)
    for name, parameter in policy.weights.parameters.items():
        assert parameter.grad is not None and naive[name] is not None, name
        # measured against the whole gradient too: single tensors of it can be nearly zero
        difference = (parameter.grad - naive[name]).norm()
        assert difference <= 1e-5 * naive[name].norm() + 1e-9, name
    total = torch.cat([p.grad.flatten() for p in policy.weights.parameters.values()])
    other = torch.cat([naive[name].flatten() for name in policy.weights.parameters])
    assert (total - other).norm() <= 1e-5 * other.norm()


@pytest.mark.slow
@pytest.mark.parametrize("latent_dtype", ["float32", "bfloat16", "float16"])
def test_replaying_the_decisions_gives_the_recorded_ones_also_after_rounding(
    lab_policy: Any, latent_dtype: str
) -> None:
    policy = lab_policy(latent_dtype=latent_dtype)
    rollout = sample_images(policy, FlowSDE(num_steps=STEPS, sigmas="uniform"))
    view = all_calls(rollout)
    with torch.no_grad():
        again, recorded = policy.forward(rollout, view), policy.recorded(rollout, view)
    torch.testing.assert_close(again.log_prob(), recorded.log_prob(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(again.log_ratio(recorded), torch.zeros(8, 5), atol=1e-5, rtol=0)
    # what is stored is where the sample went on from
    block, decided = rollout.blocks[0], rollout.trace.decided
    assert torch.equal(decided.child[block.edge[:, :-1]], decided.state[block.call[:, 1:]])
    # z = (x' - mean) / std is standard normal, so what is scored is what was drawn
    std = rollout.trace.decided.transition[:, 2].view(-1, 1, 1, 1)
    z = (rollout.trace.decided.child.float() - recorded.mean) / std
    assert abs(float(z.mean())) < 0.08 and abs(float(z.std()) - 1) < 0.06


@pytest.mark.slow
def test_decisions_computed_again_are_those_of_the_weights_in_place(lab_policy: Any) -> None:
    policy = lab_policy()
    rollout = sample_images(policy, FlowSDE(num_steps=STEPS, sigmas="uniform"))
    for parameter in policy.weights.parameters.values():
        parameter.data.mul_(1.02)
    view = all_calls(rollout)
    with torch.no_grad():
        now = policy.forward(rollout, view)
    assert now.log_ratio(policy.recorded(rollout, view)).abs().max() > 1e-3
    again = policy.recorded(policy.recompute(rollout, 7), view)
    torch.testing.assert_close(now.log_ratio(again), torch.zeros(8, 5), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_samples_do_not_depend_on_the_other_groups_nor_on_the_batch(lab_policy: Any) -> None:
    together = sample_images(lab_policy(), FlowSDE(num_steps=STEPS, sigmas="uniform"))
    small = lab_policy(network_batch=3, decode_batch=1)
    sampler = FlowSDE(num_steps=STEPS, sigmas="uniform")
    key = GroupKey(7, 0, 1)
    alone = small.rollout([PROMPTS[1]], [sampler.plan(small, key, GROUP)], [key])
    assert alone.outputs.images is not None and together.outputs.images is not None
    torch.testing.assert_close(alone.outputs.images, together.outputs.images[GROUP:], atol=1e-4, rtol=0)
    torch.testing.assert_close(alone.trace.clean, together.trace.clean[GROUP:], atol=1e-4, rtol=1e-4)


@pytest.mark.slow  # most of a second each, or more
def test_joined_rollouts_evaluate_like_one(lab_policy: Any) -> None:
    policy = lab_policy()
    sampler = single_step(2)
    whole = sample_images(policy, sampler)
    keys = [GroupKey(7, 0, n) for n in range(2)]
    parts = [policy.rollout([p], [sampler.plan(policy, k, GROUP)], [k]) for p, k in zip(PROMPTS, keys, strict=True)]
    joined = Rollout.join(parts)
    assert torch.equal(joined.blocks[0].call, whole.blocks[0].call)
    assert torch.equal(joined.blocks[0].edge, whole.blocks[0].edge)
    assert torch.equal(joined.prompt, whole.prompt) and torch.equal(joined.group, whole.group)
    with torch.no_grad():
        one, other = (policy.forward(r, all_calls(r)).log_prob() for r in (whole, joined))
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_a_partial_view_holds_its_own_entries_and_zeros(lab_policy: Any) -> None:
    policy = lab_policy()
    rollout = sample_images(policy, FlowSDE(num_steps=STEPS, sigmas="uniform"))
    view = all_calls(rollout)
    with torch.no_grad():
        whole = policy.forward(rollout, view).log_prob()
        parts = [(part, policy.forward(rollout, part).log_prob()) for part in view.split(7)]
    assert len(parts) == 6
    for part, values in parts:
        assert torch.equal(values != 0, part.weight(rollout) > 0)
    torch.testing.assert_close(sum(values for _, values in parts), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_an_ode_rollout_has_no_decisions(lab_policy: Any) -> None:
    rollout = sample_images(lab_policy(), ODE(num_steps=STEPS, sigmas="uniform"))
    assert rollout.blocks[0].call.shape == (2 * GROUP, 0)


@pytest.mark.slow
def test_shared_edges_count_one_over_their_leaves(lab_policy: Any) -> None:
    policy = lab_policy()
    split = Transition(1.0, -0.25, 0.1)  # any linear move will do
    steps = (Step(1.0, 0.75, split, 2), Step(0.75, 0.5, split, 2), Step(0.5, 0.0, Transition(1.0, -0.5, 0.0)))
    key = GroupKey(0, 0, 0)
    rollout = policy.rollout([PROMPTS[0]], [Plan(1, steps)], [key])
    block = rollout.blocks[0]
    assert block.edge.tolist() == [[0, 2], [0, 3], [1, 4], [1, 5]]
    assert block.call.tolist() == [[0, 1], [0, 1], [0, 2], [0, 2]]
    assert block.weight.tolist() == [[0.5, 1.0]] * 4
    assert rollout.num_calls == 1 + 2 + 4


def fan_in_two_granularities() -> Plan:
    """From one root: two children at the third step, and three at the second that go on fine and coarse."""

    def ode(*levels: float) -> tuple[Step, ...]:
        return tuple(Step(s, t, Transition(1.0, t - s, 0.0)) for s, t in pairwise(levels))

    fan = Step(0.75, 0.5, Transition(0.95, -0.3, 0.2), 3)
    late = Step(0.5, 0.25, Transition(0.9, -0.3, 0.15), 2)
    coarse = Fork(1, ode(0.5, 0.0), group=2)
    steps = (*ode(1.0, 0.75, 0.5), late, *ode(0.25, 0.0))
    return Plan(1, steps, forks=(Fork(1, (fan, *ode(0.5, 0.25, 0.0)), (coarse,), group=1),))


def alone(policy: StableDiffusion3, plan: Plan, key: GroupKey, path: int, leaf: int) -> tuple[Tensor, Tensor]:
    """One leaf drawn by itself, and the mean log-density of its random step, with a graph."""
    own = plan.paths[path]
    before = () if own.parent is None else (*plan.steps[:1], *plan.paths[own.parent].steps[: own.start - 1])
    steps, at = (*before, *own.steps), {0: 2, 1: 1, 2: 1}[path]  # the place of its random step
    name = () if path == 0 else ("fork", 0)  # the fan's noise, for both granularities
    latents, log_prob = normal(key.seed_for("root"), (1, *policy.latent_shape)), torch.zeros(())
    for number, step in enumerate(steps):
        velocity = policy.velocity(latents, torch.tensor([step.sigma]), policy.conditioning([PROMPTS[0].text]))
        mean = step.transition.state * latents + step.transition.velocity * velocity
        if number == at:
            noise = normal(key.seed_for(*name, "step", number), (own.num_ends, *policy.latent_shape))[leaf]
            drawn = (mean + step.transition.std * noise).detach()
            log_prob = torch.distributions.Normal(mean, step.transition.std).log_prob(drawn).mean()
            mean = drawn
        latents = mean.detach()
    return latents, log_prob


@pytest.mark.slow
def test_the_gradient_of_a_forked_plan_is_that_of_leaves_drawn_alone(lab_policy: Any) -> None:
    policy, plan, key = lab_policy(), fan_in_two_granularities(), GroupKey(7, 0, 3)
    seen = count_elements(policy)
    rollout = policy.rollout(PROMPTS[:1], [plan], [key])
    assert seen == plan.num_nodes() == [1, 1, 1 + 3, 2 + 3]
    assert rollout.group.tolist() == [3] * 2 + [subgroup(3, 1)] * 3 + [subgroup(3, 2)] * 3
    assert (rollout.prompt_index == 3).all()
    advantages = torch.linspace(-1.3, 2.1, 8)
    seen.clear()
    log_prob = policy.forward(rollout, all_calls(rollout)).log_prob()
    assert seen == [2] == [plan.num_update_calls]
    (-(advantages[:, None] * rollout.blocks[0].weight * log_prob)).sum().backward()

    leaves = [(path, leaf) for path in range(3) for leaf in range(plan.paths[path].num_ends)]
    loss = torch.zeros(())
    for row, (path, leaf) in enumerate(leaves):
        clean, own = alone(policy, plan, key, path, leaf)
        torch.testing.assert_close(rollout.trace.clean[row], clean[0], atol=1e-5, rtol=1e-5)
        loss = loss - advantages[row] * own / (
            1 if path == 0 else 2
        )  # the fan's decisions are taken by two leaves each
    parameters = policy.weights.parameters
    naive = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(parameters.values()))])
    shared = torch.cat([parameter.grad.flatten() for parameter in parameters.values()])
    assert (shared - naive).norm() <= 1e-5 * naive.norm()
    assert naive.norm() > 0
