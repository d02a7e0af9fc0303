"""Steering: a reward of the clean estimates selects the states of a flow tree that go on."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from mmrl.core.contracts import Reward
from mmrl.core.data import Outputs, Prompt
from mmrl.core.keys import GroupKey, generator
from mmrl.scoring.during_sampling import judged, judged_with_gradient

from .decisions import Conditioning
from .frontier import Frontier, PathState, ranges

# A reward, latents [n, ...], their level (0 for an estimate), the number of the plan of each [n], and the number of the
# network call before -> rewards [n] float64.
Judge = Callable[[Reward, Tensor, float, Tensor, int], Tensor]
# A reward, clean estimates [n, ...], the two last arguments of a judge -> the gradient of the reward [n, ...] float32.
Gradient = Callable[[Reward, Tensor, Tensor, int], Tensor]


class Decoder(Protocol):
    """The part of a flow policy that decodes latents; see `FlowPolicy`."""

    decode_batch: int

    def final(self, latents: Tensor, sigma: Tensor) -> Tensor: ...
    def outputs_of(self, latents: Tensor, conditioning: Conditioning) -> Outputs: ...


def judge_of(policy: Decoder, prompts: Sequence[Prompt], keys: Sequence[GroupKey], conditioning: Conditioning) -> Judge:
    """Returns a judge that decodes in chunks and scores all states with the prompts of their groups."""

    def judge(reward: Reward, latents: Tensor, level: float, plan: Tensor, call: int) -> Tensor:
        parts = latents.split(policy.decode_batch)
        clean = [policy.final(part, part.new_full((len(part),), level, dtype=torch.float32)) for part in parts]
        rows = plan.split(policy.decode_batch)
        decoded = (policy.outputs_of(part, conditioning[of]) for part, of in zip(clean, rows, strict=True))
        outputs = Outputs.filled(decoded, len(latents))
        numbers = plan.tolist()
        return judged(reward, outputs, [prompts[number] for number in numbers], [keys[n] for n in numbers], call)

    return judge


def gradient_of(
    policy: Decoder, prompts: Sequence[Prompt], keys: Sequence[GroupKey], conditioning: Conditioning
) -> Gradient:
    """Returns the gradient of a reward to clean latents, which are decoded in chunks with a graph."""

    def gradient(reward: Reward, estimates: Tensor, plan: Tensor, call: int) -> Tensor:
        found = []
        for part, of in zip(estimates.split(policy.decode_batch), plan.split(policy.decode_batch), strict=True):
            with torch.enable_grad():
                latents = part.float().requires_grad_()
                clean = policy.final(latents, latents.new_zeros(len(latents)))
                outputs, numbers = policy.outputs_of(clean, conditioning[of]), of.tolist()
                scores = judged_with_gradient(
                    reward, outputs, [prompts[number] for number in numbers], [keys[n] for n in numbers], call
                )
                found.append(torch.autograd.grad(scores.sum(), latents)[0])
        return torch.cat(found)

    return gradient


def select_states(
    frontier: Frontier, path_states: Sequence[PathState], call: int, clean: tuple[Tensor, float], judge: Judge
) -> tuple[Frontier, Tensor]:
    """Selects the states that go on behind network call `call`; returns their frontier and their rows [k].

    Args:
        frontier: of n states; plans with choices have no forks, so all are states of their own path states.
        clean: latents [n, ...] to decode and score for each state, and their level.
    """
    choices = {index: path_states[index].path.choice(call) for index in frontier.rows}
    choosing = [index for index, choice in choices.items() if choice is not None]
    if not choosing:
        return frontier, torch.arange(len(frontier.latents))
    rewards = torch.full((len(frontier.latents),), torch.nan, dtype=torch.float64)
    rows = torch.cat([torch.arange(frontier.rows[index].start, frontier.rows[index].stop) for index in choosing])
    plan = torch.cat([torch.full((len(frontier.rows[index]),), path_states[index].plan) for index in choosing])
    latents, level = clean
    first = choices[choosing[0]]
    assert first is not None, "these path states have a choice"
    rewards[rows] = judge(first.reward, latents[rows.to(latents.device)], level, plan, call)
    known = torch.cat([frontier.judged, rewards[:, None]], 1)  # [n, J]
    kept = [
        _kept(path_states[index], part, call, known[part.start : part.stop]) for index, part in frontier.rows.items()
    ]
    going = torch.cat(kept)
    return frontier.of_rows(going, ranges(list(frontier.rows), [len(part) for part in kept]), known), going


def _kept(path_state: PathState, rows: range, call: int, known: Tensor) -> Tensor:
    """Returns the rows of a path state's states that go on, by their rewards `known` [n, J] so far."""
    choice = path_state.path.choice(call)
    if choice is None:
        return torch.arange(rows.start, rows.stop)
    rewards = known[:, ~known.isnan().any(0)].unflatten(0, (-1, choice.of))  # [groups, of, J]
    places = choice.rule(rewards, choice.keep, generator(path_state.key.seed_for("choice", call)))
    return (rows.start + torch.arange(len(rewards))[:, None] * choice.of + places).flatten()
