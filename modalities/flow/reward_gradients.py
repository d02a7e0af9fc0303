"""Gradients through the sampler: samples rendered again with a graph, and scores carried back to sampled latents.

Maths: docs/maths/reward-gradients.md#draft-and-alignprop
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmrl.core.contracts import ConfigError, DifferentiableScore
from mmrl.core.data import Outputs, Rollout
from mmrl.core.forward_outputs import RenderedOutputs
from mmrl.core.keys import normal
from mmrl.core.views import OutputsView

from .decisions import column, linear_mean
from .trajectory import Trajectory
from .tree_sampling import Velocity

Tensors = Callable[..., Tensor]
Result = TypeVar("Result")


class Renderer(Protocol):
    """The part of a flow policy that renders samples; see `FlowPolicy`."""

    num_calls: int
    decode_batch: int
    recompute_activations: bool

    def guided(self, latents: Tensor, sigma: Tensor, conditioning: Any, scale: float) -> Tensor: ...
    def final(self, latents: Tensor, sigma: Tensor) -> Tensor: ...
    def rendered_of(self, latents: Tensor, conditioning: Any) -> Outputs: ...


def rendered(policy: Renderer, rollout: Rollout, view: OutputsView) -> RenderedOutputs:
    """Renders the media of the view by the weights now in place, with a graph."""
    trace = rollout.trace
    clean = render(trace.trajectory, trace.clean, view, _velocity(policy, trace), policy.final)
    decode = kept_small(policy.rendered_of) if policy.recompute_activations else policy.rendered_of
    rows = rollout.prompt[view.sample].split(policy.decode_batch)
    parts = zip(clean.split(policy.decode_batch), rows, strict=True)
    decoded = Outputs.join([decode(part, trace.conditioning[of]) for part, of in parts])
    return RenderedOutputs(decoded, view.sample, view.column, (rollout.num_samples, view.num_noise_samples))


def differentiated(policy: Renderer, rollout: Rollout, rows: Tensor, score: DifferentiableScore, size: int) -> Rollout:
    """Returns the rollout with the gradient of the samples' scores at every sampled latent (see `carry_back`)."""
    trace = rollout.trace
    trajectory: Trajectory = trace.trajectory
    gradient = torch.zeros_like(trajectory.end, dtype=torch.float32)
    for part in rows.split(min(size, policy.decode_batch)):
        at = part.to(gradient.device)
        with torch.enable_grad():
            end = trajectory.end[at].float().requires_grad_()
            clean, of = policy.final(end, trajectory.end_sigma[at]), trace.conditioning[rollout.prompt[part]]
            gradient[at] = torch.autograd.grad(score(policy.rendered_of(clean, of), part).sum(), end)[0]
    carried = carry_back(trajectory, rollout.blocks[0].edge, rows, gradient, (_velocity(policy, trace), size))
    return replace(rollout, trace=replace(trace, gradient=carried))


def _velocity(policy: Renderer, trace: Any) -> Velocity:
    """Returns the guided network; its calls are counted once, also where activations are computed again."""
    guided = kept_small(policy.guided) if policy.recompute_activations else policy.guided

    def velocity(latents: Tensor, sigma: Tensor, prompt: Tensor) -> Tensor:
        policy.num_calls += len(latents) * (1 if trace.guidance_scale == 1 else 2)
        return guided(latents, sigma, trace.conditioning[prompt], trace.guidance_scale)

    return velocity


def kept_small(function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns the function with checkpointing: only its arguments are kept for the backward pass."""

    def checkpointed(*arguments: Any) -> Result:
        if not torch.is_grad_enabled():
            return function(*arguments)
        result: Result = checkpoint(function, *arguments, use_reentrant=False)
        return result

    return checkpointed


def render(trajectory: Trajectory, clean: Tensor, view: OutputsView, velocity: Velocity, final: Tensors) -> Tensor:
    """Renders the clean latents [n, ...] of the view's n entries, with a graph through the view's steps.

    The first states have no graph. By the weights that sampled the rollout, the result is the samples again: noise and
    rounding are those of the rollout. States that several entries share are evaluated once; rounding to the storage
    dtype has the gradient 1.

    Args:
        clean: [B, ...] the latents that the samples were decoded from. velocity: the network. final: see
            `FlowPolicy.final`.
    Raises:
        ConfigError: the samples have fewer steps than the view goes back.
    """
    rows, last = view.sample, trajectory.num_steps - 1 - view.left_out
    first = last + 1 - view.num_steps
    if first < 0 or (trajectory.node[rows, first] < 0).any():
        raise ConfigError(
            f"the loss looks back {view.num_steps + view.left_out} steps, but the samples have fewer steps "
            f"({trajectory.num_steps} at most); raise sampler.num_steps"
        )
    device, dtype = trajectory.state.device, trajectory.state.dtype
    current, place = trajectory.node[rows, first].unique(return_inverse=True)  # on the CPU, as all numbers here
    latents = trajectory.state[current.to(device)]
    if view.noise_seed:  # the entries' own clean latents, noised anew
        current, place = current[place], torch.arange(len(rows))
        latents = _noised(clean[rows.to(device)], trajectory.sigma[current], view.noise_seed).to(dtype)
    for step in range(first, last + 1):
        sigma = trajectory.sigma[current]
        predicted = velocity(latents, sigma, trajectory.prompt[current])
        if step == last and view.left_out:
            return (latents.float() - column(sigma.to(device), latents) * predicted)[place.to(device)]
        taken, added = trajectory.step[rows, step], trajectory.added[rows, step]  # [n]
        if step < last:
            current, following = trajectory.node[rows, step + 1].unique(return_inverse=True)
            place, taken, added = (_of_each(values, following, len(current)) for values in (place, taken, added))
        there = place.to(device)
        mean = linear_mean(trajectory.transition[taken.to(device)], latents[there], predicted[there])
        latents = _rounded(mean + _noise_of(trajectory, added), dtype)
        place = following if step < last else place
    return final(latents, trajectory.end_sigma[rows.to(device)])


def carry_back(
    trajectory: Trajectory, edges: Tensor, rows: Tensor, gradient: Tensor, network: tuple[Velocity, int]
) -> Tensor:
    """Returns the gradient of scores with respect to the sampled latents of every decision: [E, ...].

    The lean adjoint of Domingo-Enrich et al. 2024, "Adjoint Matching", arXiv 2409.08861, section 5, on the sampler's
    own grid: gradient(x_k) = J_k^T gradient(x_{k+1}), with J_k the Jacobian of the mean of the step from x_k under the
    weights now in place. Latents that several samples share get the mean of their gradients.

    Args:
        edges: [B, K] decisions of each sample in order, -1 where there is none.
        rows: [n] the samples that take part; decisions of others get 0.
        gradient: [B, ...] of each sample's score with respect to its last latents.
        network: the velocity, and how many states it sees at a time.
    """
    trajectory = trajectory.from_the_start()  # shared states stand in one column, however many steps follow
    device, rank = gradient.device, trajectory.is_decision.long().cumsum(1) - 1  # [B, T]: which decision a step is
    carried = gradient.new_zeros(int(edges.max()) + 1 if edges.numel() else 0, *gradient.shape[1:])
    for step in reversed(range(trajectory.num_steps)):
        decides = rows[trajectory.is_decision[rows, step]]
        edge, place = edges[decides, rank[decides, step]].unique(return_inverse=True)
        carried[edge.to(device)] = _mean_by(gradient[decides.to(device)], place, len(edge))
        is_behind = trajectory.is_decision[rows, :step].any(1)
        remaining = rows[is_behind & (trajectory.node[rows, step] >= 0)]
        if len(remaining):
            at = remaining.to(device)
            gradient = gradient.index_copy(0, at, _pulled_back(trajectory, remaining, step, gradient[at], network))
    return carried


def _pulled_back(
    trajectory: Trajectory, rows: Tensor, step: int, gradient: Tensor, network: tuple[Velocity, int]
) -> Tensor:
    """Returns J^T gradient [n, ...] at the states of the samples `rows` [n] before a step.

    One network call is made for each distinct state. Steps are linear in state and velocity, so
    J^T g = state g + velocity (dv/dx)^T g, whatever step leaves the state.
    """
    device, (velocity, size) = gradient.device, network
    node, place = trajectory.node[rows, step].unique(return_inverse=True)
    transition = trajectory.transition[trajectory.step[rows, step].to(device)]
    direct = _mean_by(column(transition[:, 0], gradient) * gradient, place, len(node))
    through = _mean_by(column(transition[:, 1], gradient) * gradient, place, len(node))
    pulled = []
    for part, weight in zip(node.split(size), through.split(size), strict=True):
        with torch.enable_grad():
            state = trajectory.state[part.to(device)].float().requires_grad_()
            predicted = velocity(state, trajectory.sigma[part], trajectory.prompt[part])
            pulled.append(torch.autograd.grad(predicted, state, weight)[0])
    return (direct + torch.cat(pulled))[place.to(device)]


def _mean_by(values: Tensor, place: Tensor, count: int) -> Tensor:
    """Returns the means [count, ...] of the rows of `values` [n, ...] that have the same `place` [n], on the CPU."""
    total = values.new_zeros(count, *values.shape[1:]).index_add(0, place.to(values.device), values)
    return total / column(torch.bincount(place, minlength=count).to(values), values)


def _of_each(values: Tensor, place: Tensor, count: int) -> Tensor:
    """Returns [count] the value that all entries of a place share, from values [n] and place [n]."""
    return values.new_empty(count).index_copy(0, place, values)


def _noise_of(trajectory: Trajectory, added: Tensor) -> Tensor | float:
    """Returns the noise [n, ...] that steps added to their means, by its numbers `added` [n] on the CPU; 0 for -1."""
    if not (added >= 0).any():
        return 0.0
    added = added.to(trajectory.noise.device)
    return torch.where(column(added >= 0, trajectory.noise), trajectory.noise[added.clamp(min=0)], 0.0)


def _noised(clean: Tensor, sigma: Tensor, seeds: tuple[int, ...]) -> Tensor:
    """Returns (1 - sigma) clean + sigma noise, with noise by seed; clean [n, ...], sigma [n] on the CPU."""
    noise = torch.stack([normal(seed, tuple(clean.shape[1:])) for seed in seeds]).to(clean.device)
    level = column(sigma.to(clean.device), noise)
    return (1 - level) * clean.float() + level * noise


def _rounded(latents: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds float32 latents to the storage dtype, with the gradient of the identity."""
    return latents if dtype == torch.float32 else latents + (latents.to(dtype).float() - latents).detach()
