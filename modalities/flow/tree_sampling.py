"""Executes flow plans as trees: the network is called once for each state, however many samples share it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmrl.core.data import DecisionBlock
from mmrl.core.keys import GroupKey, subgroup
from mmrl.plans.flow import Plan

from .decisions import FlowDecisions, column, linear_mean
from .frontier import Frontier, PathState, TreeStep, path_states_of, ranges
from .neighbors import beside_anchors, root_noise
from .recorder import DecisionRecorder, numbers_of
from .solvers import Solvers
from .steering import Gradient, Judge, select_states
from .trajectory import Trajectory


@dataclass(frozen=True)
class Tree:
    """The sampled trees of some plans: their leaves, and the decisions on the paths to them."""

    decided: FlowDecisions
    clean: Tensor  # [B, ...] final latents
    sigma: Tensor  # [B] float32: the last noise level of each
    prompt: Tensor  # [B] int64: number of the plan, and so of the prompt
    group: Tensor  # [B] int64: which leaves are compared with each other
    block: DecisionBlock
    trajectory: Trajectory | None = None  # where it was recorded


# latents [n, ...], and on the CPU sigma [n] and prompt [n] -> velocity [n, ...] float32
Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]
Initial = Callable[[Tensor, Tensor], Tensor]  # standard normal noise [n, ...], sigma [n] -> first latents [n, ...]


def noise_itself(noise: Tensor, sigma: Tensor) -> Tensor:
    """Returns the noise: a flow starts from pure noise, at sigma 1 or slightly below."""
    return noise


@torch.no_grad()
def sample_trees(
    plans: Sequence[Plan],
    keys: Sequence[GroupKey],
    velocity: Velocity,
    shape: tuple[int, ...],
    like: Tensor,
    *,
    initial: Initial = noise_itself,
    records: DecisionRecorder | None = None,
    judge: Judge | None = None,
    gradient: Gradient | None = None,
) -> Tree:
    """Samples one group per plan, all plans and their paths side by side, and records every decision.

    The seed of noise is that of the group's key, the forks that lead to a path and the number of the step, so other
    groups, the micro-batch and the processes change nothing. A latent is rounded to its storage dtype before its
    log-prob is taken.

    Args:
        plans: P plans. keys: P keys.
        velocity: the network, called once per tree step on the states of all paths of all groups.
        shape: of one latent. like: a tensor of the device and the storage dtype of latents.
        initial: makes the first latents from noise, at each plan's first sigma.
        records: the recorder of decisions; None: a new one, with mean log-probs. judge: scores states by the rewards of
            plans with choices. gradient: that of the rewards that guide plans.
    """
    path_states, records = path_states_of(plans, keys), records or DecisionRecorder("mean", None)
    roots = torch.cat([root_noise(plan, key, shape) for plan, key in zip(plans, keys, strict=True)]).to(like.device)
    frontier = _first_frontier(plans, path_states, lambda levels: initial(roots, levels.to(like.device)).to(like))
    assert judge is not None or not any(plan.choices for plan in plans), "choices need a judge"
    assert gradient is not None or not any(plan.reward_guidance for plan in plans), "guidance needs a gradient"
    ended, solvers = dict[int, Frontier](), Solvers()
    for number in range(max(plan.num_tree_steps for plan in plans)):
        call = NetworkCall.of(frontier, TreeStep.of(number, path_states, frontier), velocity)
        call = call if gradient is None else _guided_by_reward(call, plans, gradient)
        frontier = _advance(call if judge is None else _steered(call, path_states, judge), records, solvers)
        frontier, ends = frontier.without([i for i in frontier.rows if path_states[i].path.end == number + 1])
        for index, end in ends.items():
            clean = (end.latents, path_states[index].path.last_level)
            ended[index] = end if judge is None else select_states(end, path_states, number + 1, clean, judge)[0]
    return _tree_of([ended[index] for index in range(len(path_states))], path_states, records)


def _first_frontier(
    plans: Sequence[Plan], path_states: Sequence[PathState], latents_at: Callable[[Tensor], Tensor]
) -> Frontier:
    """Returns the roots of all plans; `latents_at` makes latents for the first sigma [n] of each root."""
    first = torch.tensor([plan.paths[0].levels[0] for plan in plans], dtype=torch.float32)
    counts = torch.tensor([plan.roots for plan in plans])
    latents = latents_at(first.repeat_interleave(counts))
    begun = [index for index, path_state in enumerate(path_states) if path_state.parent is None]
    nothing = torch.zeros(len(latents), 0, 4, dtype=torch.int64)
    return Frontier(latents, ranges(begun, counts.tolist()), nothing[..., :2], nothing, nothing[:, :, 0].double())


def _tree_of(leaves: Sequence[Frontier], path_states: Sequence[PathState], records: DecisionRecorder) -> Tree:
    """Assembles the trees from the leaves of all path states, which have reached their ends."""
    width = max(leaf.taken.shape[1] for leaf in leaves)
    taken = torch.cat([pad(leaf.taken, (0, 0, 0, width - leaf.taken.shape[1]), value=-1) for leaf in leaves])
    counts = torch.tensor([len(leaf.latents) for leaf in leaves])
    clean = torch.cat([leaf.latents for leaf in leaves])
    sigma = torch.tensor([path_state.path.last_level for path_state in path_states], dtype=torch.float32)
    group = torch.tensor([subgroup(one.key.prompt_index, number) for one in path_states for number in one.path.groups])
    prompt = torch.tensor([path_state.plan for path_state in path_states])
    each, trajectory = torch.arange(len(path_states)).repeat_interleave(counts), None
    if records.recorder is not None:
        passed = [leaf.passed for leaf in leaves]
        trajectory = records.recorder.trajectory(passed, clean, sigma[each].to(clean.device))
    decided, block = records.decided(clean), records.block(taken)
    return Tree(decided, clean, sigma[each], prompt[each], group, block, trajectory)


@dataclass(frozen=True)
class NetworkCall:
    """One network call, and the states from which the steps of all active path states start."""

    frontier: Frontier
    tree_step: TreeStep
    nodes: tuple[Tensor, Tensor, Tensor]  # state of the call; on the CPU its sigma and prompt
    back: Tensor  # [n] int64, on the CPU: the node of each state that a step starts from
    predicted: Tensor  # [n, ...] velocity at these states

    @classmethod
    def of(cls, frontier: Frontier, tree_step: TreeStep, velocity: Velocity) -> "NetworkCall":
        """Calls the network once at all states of the frontier from which a step starts."""
        device, back = frontier.latents.device, torch.arange(len(frontier.latents))
        sigma = tree_step.spread([step.sigma for step in tree_step.steps], torch.float32)
        prompt = tree_step.spread([path_state.plan for path_state in tree_step.path_states], torch.int64)
        if all(tree_step.has_own):
            nodes = (frontier.latents, sigma, prompt)
            return cls(frontier, tree_step, nodes, back, velocity(*nodes))
        # states at which path states begin stand in the frontier once, as those of the path state that they leave
        own = tree_step.spread(tree_step.has_own, torch.bool).nonzero().squeeze(1)
        back = torch.cat([torch.arange(rows.start, rows.stop) for rows in tree_step.sources])
        nodes = (frontier.latents, sigma[own], prompt[own])
        return cls(frontier, tree_step, nodes, back, velocity(*nodes)[back.to(device)])


def _guided_by_reward(call: NetworkCall, plans: Sequence[Plan], gradient: Gradient) -> NetworkCall:
    """Adds the gradient of the reward of the clean estimates to the velocity of plans that it guides at this call."""
    latents, sigma, prompt = call.nodes
    guidance = next(plan.reward_guidance for plan in plans if plan.reward_guidance is not None)
    number = call.tree_step.number
    of_plan = [
        plan.reward_guidance is not None and plan.reward_guidance.first <= number < plan.reward_guidance.last
        for plan in plans
    ]
    guided = torch.tensor(of_plan)[prompt].nonzero()[:, 0]
    if not len(guided):
        return call
    rows, level = guided.to(latents.device), column(sigma[guided].to(latents.device), latents)
    estimate = latents[rows].float() - level * call.predicted[rows]
    force = guidance.scale * gradient(guidance.reward, estimate, prompt[guided], number)
    predicted = call.predicted.index_add(0, rows, -(level / (1 - level) * force).to(call.predicted.dtype))
    return replace(call, predicted=predicted)


def _steered(call: NetworkCall, path_states: Sequence[PathState], judge: Judge) -> NetworkCall:
    """Selects, among the states of plans with choices, those that go on; states of other plans all go on."""
    latents, sigma, prompt = call.nodes
    estimate = latents.float() - column(sigma.to(latents.device), latents) * call.predicted
    frontier, kept = select_states(call.frontier, path_states, call.tree_step.number, (estimate, 0.0), judge)
    rows = kept.to(latents.device)
    nodes = (frontier.latents, sigma[kept], prompt[kept])
    tree_step = TreeStep.of(call.tree_step.number, path_states, frontier)
    return NetworkCall(frontier, tree_step, nodes, torch.arange(len(kept)), call.predicted[rows])


def _advance(call: NetworkCall, records: DecisionRecorder, solvers: Solvers) -> Frontier:
    """Takes the next step of all active path states; returns the states that they reach."""
    frontier, tree_step, nodes, back = call.frontier, call.tree_step, call.nodes, call.back
    device, steps = frontier.latents.device, tree_step.steps
    table = tree_step.spread([numbers_of(step, tree_step.number) for step in steps], torch.float32)  # [n, 10]
    transition, latents = table[:, :3].to(device), nodes[0][back.to(device)]
    mean = linear_mean(transition, latents, call.predicted)
    branch = tree_step.spread([step.branch for step in steps], torch.int64)
    parent = torch.arange(len(latents)).repeat_interleave(branch)
    child, noise = mean[parent.to(device)], None
    if any(step.is_random for step in steps):
        noise = column(transition[parent.to(device), 2], child) * tree_step.noise(child.shape[1:]).to(device)
        child = child + noise
    child = solvers.stepped(tree_step, (latents, call.predicted), branch, child).to(latents.dtype)
    taken, passed = frontier.taken[back[parent]], frontier.passed[back[parent]]
    if records.recorder is not None:
        origin = torch.stack([back, tree_step.spread([step.is_decision for step in steps], torch.int64)], 1)
        passed = torch.cat([passed, records.recorder.add(nodes, transition, origin, parent, noise)[:, None]], 1)
    if any(step.is_decision for step in steps):
        prompt = tree_step.spread([path_state.plan for path_state in tree_step.path_states], torch.int64)
        node = (latents, table[:, 3], transition, prompt, mean)
        taken = torch.cat([taken, records.add(node, table[:, 4:], child, parent)[:, None]], 1)
    beside = beside_anchors(tree_step, (latents, call.predicted), child, records)
    if beside is not None:
        taken = torch.cat([taken, beside], 1)
    sizes = [len(rows) * step.branch for rows, step in zip(tree_step.sources, steps, strict=True)]
    return Frontier(child, ranges(tree_step.indices, sizes), taken, passed, frontier.judged[back[parent]])
