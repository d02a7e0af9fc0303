"""Executes flow plans as trees: the network sees each state once, however many samples pass through it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmrl.data import DecisionBlock, subgroup
from mmrl.keys import GroupKey
from mmrl.modalities._choosing import Judge, chosen
from mmrl.modalities._neighbours import beside_anchors, root_noise
from mmrl.modalities._records import Records, numbers_of, rows_of
from mmrl.modalities._solvers import Solvers
from mmrl.modalities._strands import Front, Strand, Tick, ranges, strands_of
from mmrl.modalities._trajectory import Trajectory
from mmrl.modalities._tree import Decided, column, linear_mean
from mmrl.plans import Plan


@dataclass(frozen=True)
class Tree:
    """What `grow` returns: the leaves, whose they are, and the decisions on their paths."""

    decided: Decided
    clean: Tensor  # [B, ...] final latents
    sigma: Tensor  # [B] float32: the last noise level of each
    prompt: Tensor  # [B] int64: number of the plan
    group: Tensor  # [B] int64: which leaves are compared with each other
    block: DecisionBlock
    trajectory: Trajectory | None = None  # where it was to be kept


Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]  # latents [n, ...], sigma [n], prompt [n] -> [n, ...] float32
Initial = Callable[[Tensor, Tensor], Tensor]  # standard normal noise [n, ...], sigma [n] -> first latents [n, ...]


def noise_itself(noise: Tensor, sigma: Tensor) -> Tensor:
    """A flow starts from pure noise, at sigma 1 or a breath below it."""
    return noise


@torch.no_grad()
def grow(
    plans: Sequence[Plan],
    keys: Sequence[GroupKey],
    velocity: Velocity,
    shape: tuple[int, ...],
    like: Tensor,
    *,
    initial: Initial = noise_itself,
    records: Records | None = None,
    judge: Judge | None = None,
) -> Tree:
    """Draws one group per plan, all plans and their paths side by side, and records every decision.

    Noise is drawn from each group's key, the forks that lead to a path and the number of the step, so other groups, the
    micro-batch and the processes change nothing. A latent is rounded to its storage dtype before its log-probability is
    taken.

    Args:
        plans: P plans. keys: P keys.
        velocity: the network, called once per tick on the states of all paths of all groups.
        shape: of one latent. like: a tensor of the device and the storage dtype of latents.
        initial: makes the first latents, at each plan's first sigma, of noise.
        records: where decisions go; None: new ones, with mean log-probabilities. judge: says how good states are, for
            plans with choices.
    """
    strands, records = strands_of(plans, keys), records or Records("mean", None)
    roots = torch.cat([root_noise(plan, key, shape) for plan, key in zip(plans, keys, strict=True)]).to(like.device)
    front = _first_front(plans, strands, lambda levels: initial(roots, levels.to(like.device)).to(like))
    assert judge is not None or not any(plan.choices for plan in plans), "choices need a judge"
    ended, solvers = dict[int, Front](), Solvers()
    for number in range(max(plan.num_ticks for plan in plans)):
        called = Called.of(front, Tick.of(number, strands, front), velocity)
        front = _advance(called if judge is None else _steered(called, strands, judge), records, solvers)
        front, ends = front.without([i for i in front.rows if strands[i].path.end == number + 1])
        for index, end in ends.items():
            clean = (end.latents, strands[index].path.last_level)
            ended[index] = end if judge is None else chosen(end, strands, number + 1, clean, judge)[0]
    return _grown([ended[index] for index in range(len(strands))], strands, records)


def _first_front(plans: Sequence[Plan], strands: Sequence[Strand], latents_at: Callable[[Tensor], Tensor]) -> Front:
    """The roots of all plans; `latents_at` makes them for the first sigma [n] of each."""
    first = torch.tensor([plan.paths[0].levels[0] for plan in plans], dtype=torch.float32)
    counts = torch.tensor([plan.roots for plan in plans])
    latents = latents_at(first.repeat_interleave(counts))
    begun = [index for index, strand in enumerate(strands) if strand.parent is None]
    nothing = torch.zeros(len(latents), 0, 4, dtype=torch.int64)
    return Front(latents, ranges(begun, counts.tolist()), nothing[..., :2], nothing, nothing[:, :, 0].double())


def _grown(leaves: Sequence[Front], strands: Sequence[Strand], records: Records) -> Tree:
    """The tree whose strands have come to their ends, each with its leaves."""
    width = max(leaf.taken.shape[1] for leaf in leaves)
    taken = torch.cat([pad(leaf.taken, (0, 0, 0, width - leaf.taken.shape[1]), value=-1) for leaf in leaves])
    counts = torch.tensor([len(leaf.latents) for leaf in leaves])
    clean = torch.cat([leaf.latents for leaf in leaves])
    sigma = torch.tensor([strand.path.last_level for strand in strands], dtype=torch.float32)
    group = torch.tensor([subgroup(one.key.draw, number) for one in strands for number in one.path.groups])
    prompt = torch.tensor([strand.plan for strand in strands])
    each, trajectory = torch.arange(len(strands)).repeat_interleave(counts), None
    if records.recorder is not None:
        passed = [leaf.passed for leaf in leaves]
        trajectory = records.recorder.trajectory(passed, clean, sigma[each].to(clean.device))
    decided, block = records.decided(clean), records.block(taken)
    return Tree(decided, clean, sigma[each], prompt[each], group, block, trajectory)


@dataclass(frozen=True)
class Called:
    """One network call, and what the steps of all strands under way start from."""

    front: Front
    tick: Tick
    nodes: tuple[Tensor, Tensor, Tensor]  # state, sigma and prompt of the call
    back: Tensor  # [n] int64, on the CPU: the node behind each state that a step starts from
    predicted: Tensor  # [n, ...] velocity at these

    @classmethod
    def of(cls, front: Front, tick: Tick, velocity: Velocity) -> "Called":
        device, back = front.latents.device, torch.arange(len(front.latents))
        sigma = tick.spread([step.sigma for step in tick.steps], torch.float32).to(device)
        prompt = tick.spread([strand.plan for strand in tick.strands], torch.int64).to(device)
        if all(tick.has_own):
            nodes = (front.latents, sigma, prompt)
            return cls(front, tick, nodes, back, velocity(*nodes))
        # states that strands begin at stand in the front once, for the strand that they leave
        own = rows_of(tick.spread(tick.has_own, torch.bool), device)
        back = torch.cat([torch.arange(rows.start, rows.stop) for rows in tick.sources])
        nodes = (front.latents, sigma[own], prompt[own])
        return cls(front, tick, nodes, back, velocity(*nodes)[back.to(device)])


def _steered(called: Called, strands: Sequence[Strand], judge: Judge) -> Called:
    """What goes on of the states of plans with choices."""
    latents, sigma, prompt = called.nodes
    estimate = latents.float() - column(sigma, latents) * called.predicted
    front, kept = chosen(called.front, strands, called.tick.number, (estimate, 0.0), judge)
    rows = kept.to(latents.device)
    nodes = (front.latents, sigma[rows], prompt[rows])
    tick = Tick.of(called.tick.number, strands, front)
    return Called(front, tick, nodes, torch.arange(len(kept)), called.predicted[rows])


def _advance(called: Called, records: Records, solvers: Solvers) -> Front:
    """The states that all strands under way reach by their next step."""
    front, tick, nodes, back = called.front, called.tick, called.nodes, called.back
    device, steps = front.latents.device, tick.steps
    table = tick.spread([numbers_of(step, tick.number) for step in steps], torch.float32)  # [n, 10]
    transition, latents = table[:, :3].to(device), nodes[0][back.to(device)]
    mean = linear_mean(transition, latents, called.predicted)
    branch = tick.spread([step.branch for step in steps], torch.int64)
    parent = torch.arange(len(latents)).repeat_interleave(branch)
    child, noise = mean[parent.to(device)], None
    if any(step.is_random for step in steps):
        noise = column(transition[parent.to(device), 2], child) * tick.noise(child.shape[1:]).to(device)
        child = child + noise
    child = solvers.stepped(tick, (latents, called.predicted), branch, child).to(latents.dtype)
    taken, passed = front.taken[back[parent]], front.passed[back[parent]]
    if records.recorder is not None:
        origin = torch.stack([back, tick.spread([step.is_decision for step in steps], torch.int64)], 1)
        passed = torch.cat([passed, records.recorder.add(nodes, transition, origin, parent, noise)[:, None]], 1)
    if any(step.is_decision for step in steps):
        prompt = tick.spread([strand.plan for strand in tick.strands], torch.int64).to(device)
        node = (latents, table[:, 3].to(device), transition, prompt, mean)
        taken = torch.cat([taken, records.add(node, table[:, 4:], child, parent)[:, None]], 1)
    beside = beside_anchors(tick, (latents, called.predicted), child, records)
    if beside is not None:
        taken = torch.cat([taken, beside], 1)
    sizes = [len(rows) * step.branch for rows, step in zip(tick.sources, steps, strict=True)]
    return Front(child, ranges(tick.indices, sizes), taken, passed, front.judged[back[parent]])
