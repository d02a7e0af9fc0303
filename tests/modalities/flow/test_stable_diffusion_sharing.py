"""Stable Diffusion under policy gradients: against DDPO written out on its own latents, and what groups share."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.views import DecisionView
from mmrl.samplers.base.window import Window
from mmrl.samplers.cps import CPS
from mmrl.samplers.ddim import DDIM
from tests.diffusion_twins import DIFFUSERS, KINDS, policy_of, twin, with_scheduler

PROMPTS = [Prompt("red circle top left"), Prompt("blue cross middle right")]
STEPS, GROUP = 5, 3


def sample_images(policy: Any, sampler: Any, prompts: list[Prompt] = PROMPTS) -> Rollout:
    keys = [GroupKey(7, 0, n) for n in range(len(prompts))]
    rollout: Rollout = policy.rollout(prompts, [sampler.plan(policy, key, GROUP) for key in keys], keys)
    return rollout


def all_calls(rollout: Rollout) -> DecisionView:
    calls = rollout.blocks[0].call
    return DecisionView(torch.unique(calls[calls >= 0]))


def ddpo_log_prob(policy: Any, state: Tensor, chosen: Tensor, sigma: float, sigma_next: float, text: str) -> Tensor:
    """log p of DDPO by diffusers' own scheduler and torch's own Normal, on latents of constant variance."""
    scheduler = DIFFUSERS.DDIMScheduler.from_config(policy._pipeline.scheduler.config)
    scheduler.set_timesteps(STEPS)
    here, there = ((1 - s) ** 2 + s**2 for s in (sigma, sigma_next))
    y, y_next = state / here**0.5, chosen / there**0.5
    share = scheduler.alphas_cumprod.double()
    levels = (1 - share).sqrt() / (share.sqrt() + (1 - share).sqrt())
    timestep = int((levels - sigma).abs().argmin())
    conditioning = policy.conditioning([text])
    output = policy._pipeline.unet(
        y, timestep, conditioning.tensors[0], added_cond_kwargs=policy.added(conditioning)
    ).sample
    mean = scheduler.step(output, timestep, y, eta=1.0, variance_noise=torch.zeros_like(y)).prev_sample
    std = float(scheduler._get_variance(timestep, timestep - 1000 // STEPS)) ** 0.5
    # the density of the same latent in a flow's scale, by the change of variables
    found: Tensor = torch.distributions.Normal(mean, std).log_prob(y_next).mean() - 0.5 * torch.tensor(there).log()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_and_gradients_are_those_of_ddpo_on_its_own_latents(kind: str, prediction: str, base: Path) -> None:
    policy = policy_of(with_scheduler(twin(kind, base), prediction_type=prediction))
    for parameter in policy.weights.parameters.values():
        parameter.data.normal_(std=0.1)
    rollout = sample_images(policy, DDIM(num_steps=STEPS, window=Window(mode="range", last=STEPS)))
    block, decided = rollout.blocks[0], rollout.trace.decided
    assert block.call.shape == (2 * GROUP, STEPS)  # the last step is one of them
    log_prob = policy.forward(rollout, all_calls(rollout)).log_prob()
    weight = torch.linspace(-1.3, 2.1, log_prob.numel()).view_as(log_prob)
    parameters = list(policy.weights.parameters.values())
    ours = torch.autograd.grad((weight * log_prob).sum(), parameters)
    grid = policy.sigmas("pipeline", STEPS)
    rows = [
        torch.stack(
            [
                ddpo_log_prob(
                    policy,
                    decided.state[block.call[row, k]][None],
                    decided.child[block.edge[row, k]][None],
                    grid[k],
                    grid[k + 1],
                    PROMPTS[int(rollout.prompt[row])].text,
                )
                for k in range(STEPS)
            ]
        )
        for row in range(rollout.num_samples)
    ]
    theirs = torch.stack(rows)
    torch.testing.assert_close(log_prob, theirs.to(log_prob), atol=2e-3, rtol=1e-4)
    naive = torch.autograd.grad((weight * theirs).sum(), parameters)
    total, other = (torch.cat([g.flatten() for g in gradients]) for gradients in (ours, naive))
    # float32: latents of size 15 round at 1e-6, and the last step's std of 0.015 divides that twice
    assert (total - other).norm() <= 5e-3 * other.norm()


@pytest.mark.slow
@pytest.mark.parametrize("latent_dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_replaying_the_decisions_gives_the_recorded_ones_also_after_rounding(
    kind: str, latent_dtype: str, base: Path
) -> None:
    policy = policy_of(twin(kind, base), latent_dtype=latent_dtype)
    rollout = sample_images(policy, CPS(num_steps=STEPS, guidance_scale=2.0))
    view = all_calls(rollout)
    with torch.no_grad():
        again, recorded = policy.forward(rollout, view), policy.recorded(rollout, view)
    torch.testing.assert_close(again.log_ratio(recorded), torch.zeros(2 * GROUP, STEPS - 1), atol=1e-3, rtol=0)
    block, decided = rollout.blocks[0], rollout.trace.decided
    assert torch.equal(decided.child[block.edge[:, :-1]], decided.state[block.call[:, 1:]])
    std = decided.transition[:, 2].view(-1, 1, 1, 1)
    z = (decided.child.float() - recorded.mean) / std
    assert abs(float(z.mean())) < 0.05 and abs(float(z.std()) - 1) < 0.05
    assert str(rollout.trace.clean.dtype) == f"torch.{latent_dtype}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_prefix_is_computed_once_and_updated_by_one_call(kind: str, base: Path) -> None:
    policy = policy_of(twin(kind, base))
    seen: list[int] = []
    policy.modules()["unet"].register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(len(kwargs["sample"])), with_kwargs=True
    )
    first = 2
    window = Window(mode="range", first=first, last=first + 1)
    rollout = sample_images(policy, DDIM(num_steps=STEPS, share_noise=True, window=window))
    assert sum(seen) == 2 * (first + 1 + GROUP * (STEPS - first - 1)) == rollout.num_calls
    seen.clear()
    policy.forward(rollout, all_calls(rollout))
    assert seen == [2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_samples_do_not_depend_on_the_other_groups_nor_on_the_batch(kind: str, base: Path) -> None:
    sampler, key = DDIM(num_steps=STEPS), GroupKey(7, 0, 1)
    together = sample_images(policy_of(twin(kind, base)), sampler)
    small = policy_of(twin(kind, base), network_batch=2, decode_batch=1)
    alone = small.rollout([PROMPTS[1]], [sampler.plan(small, key, GROUP)], [key])
    assert together.outputs.images is not None
    torch.testing.assert_close(alone.outputs.images, together.outputs.images[GROUP:], atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_joined_rollouts_and_decisions_computed_again_evaluate_like_one(kind: str, base: Path) -> None:
    policy = policy_of(twin(kind, base))
    sampler, keys = DDIM(num_steps=STEPS), [GroupKey(7, 0, n) for n in range(2)]
    whole = sample_images(policy, sampler)
    parts = [
        policy.rollout([p], [sampler.plan(policy, key, GROUP)], [key]) for p, key in zip(PROMPTS, keys, strict=True)
    ]
    joined = Rollout.join(parts)
    view = all_calls(whole)
    with torch.no_grad():
        one, other = (policy.forward(r, all_calls(r)).log_prob() for r in (whole, joined))
        again = policy.recorded(policy.recompute(whole, 7), view)
        now = policy.forward(whole, view)
    assert torch.equal(joined.group, whole.group) and torch.equal(joined.prompt, whole.prompt)
    torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(now.log_ratio(again), torch.zeros_like(one), atol=1e-3, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_without_work_takes_part_in_calls_with_a_graph_to_all_weights(kind: str, base: Path) -> None:
    policy = policy_of(twin(kind, base))
    nothing = policy.dummy_forward()
    assert float(nothing.detach()) == 0
    nothing.backward()
    assert all(p.grad is not None and not p.grad.any() for p in policy.weights.parameters.values())
    policy.dummy_rollout(DDIM(num_steps=STEPS).plan(policy, GroupKey(0, 0, 0), 2))
