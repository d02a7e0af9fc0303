"""Groups of samples from initial latents near each other: their noise, and their next states beside anchors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.keys import GroupKey, normal
from mmrl.plans.flow import Plan, Step

from .decisions import linear_mean
from .frontier import TreeStep
from .recorder import DecisionRecorder, numbers_of


def root_noise(plan: Plan, key: GroupKey, shape: tuple[int, ...]) -> Tensor:
    """Returns the initial noise [roots, *shape] of a group."""
    own = normal(key.seed_for("root"), (plan.roots, *shape))
    return own if plan.neighbors is None else plan.neighbors.mixed(normal(key.seed_for("base"), shape), own)


@dataclass(frozen=True)
class _Group:
    """The members of a group at a tree step with anchors."""

    anchors: tuple[int, ...]  # A, among the members
    move: Step  # of each anchor
    begin: int  # row of the first member's state
    child: int  # row of its next state
    size: int  # G

    def states(self) -> Tensor:
        """Returns the rows of the anchors' states [A]."""
        return self.begin + torch.tensor(self.anchors)

    def next_states(self) -> Tensor:
        """Returns the rows of the next states beside the anchors [A * G], anchor by anchor."""
        return (self.child + torch.arange(self.size)).repeat(len(self.anchors))


def beside_anchors(
    tree_step: TreeStep, called: tuple[Tensor, Tensor], child: Tensor, records: DecisionRecorder
) -> Tensor | None:
    """Records the next state of each member as a sample from each anchor of its group.

    Args:
        called: latents and velocity [n, ...] of the states from which the tree step starts. child: [c, ...] the next
            states.
    Returns:
        Call and edge beside each anchor [c, A, 2] int64, on the CPU; -1 for a state with fewer anchors. None for a tree
        step without anchors.
    """
    groups = _groups(tree_step)
    if not groups:
        return None
    device, latents = child.device, called[0]
    anchors = torch.cat([group.states() for group in groups])
    states = anchors.to(device)
    rows = [numbers_of(group.move, tree_step.number) for group in groups for _ in group.anchors]
    table = torch.tensor(rows, dtype=torch.float32)  # [N, 10]
    owner = tree_step.spread([path_state.plan for path_state in tree_step.path_states], torch.int64)
    transition = table[:, :3].to(device)
    mean = linear_mean(transition, latents[states], called[1][states])
    next_states = torch.cat([group.next_states() for group in groups]).to(device)
    sizes = torch.tensor([group.size for group in groups for _ in group.anchors])
    parent = torch.arange(len(states)).repeat_interleave(sizes)
    node = (latents[states], table[:, 3], transition, owner[anchors], mean)
    numbers = records.add(node, table[:, 4:], child[next_states], parent)
    beside = torch.full((len(child), max(len(group.anchors) for group in groups), 2), -1)
    parts = numbers.split([len(group.anchors) * group.size for group in groups])
    for group, part in zip(groups, parts, strict=True):
        members = slice(group.child, group.child + group.size)
        beside[members, : len(group.anchors)] = part.view(-1, group.size, 2).transpose(0, 1)
    return beside


def _groups(tree_step: TreeStep) -> list[_Group]:
    """Returns the groups with anchors at a tree step."""
    groups, begin, child = list[_Group](), 0, 0
    for path_state, step, size in zip(tree_step.path_states, tree_step.steps, tree_step.counts.tolist(), strict=True):
        near = path_state.path.neighbors
        move = None if near is None else near.move(tree_step.number)
        if near is not None and move is not None:
            groups.append(_Group(near.anchors, move, begin, child, size))
        begin, child = begin + size, child + size * step.branch
    return groups
