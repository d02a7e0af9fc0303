"""The recorder of the decisions of flow trees during sampling, and of the facts of each decision."""

import torch
from torch import Tensor

from mmrl.core.data import DecisionBlock
from mmrl.core.numerics import Reduction, gaussian_log_prob, reduce_elements
from mmrl.plans.flow import Step

from .decisions import FlowDecisions, column
from .trajectory import TrajectoryRecorder

FACTS = ("step", "sigma", "sigma_next", "std", "jacobian", "log_prob")  # of each decision, see `decisions.Paths`


class DecisionRecorder:
    """A collection of the decisions of trees, filled during sampling."""

    def __init__(self, reduction: Reduction, recorder: TrajectoryRecorder | None) -> None:
        self.reduction, self.recorder = reduction, recorder
        self.nodes: list[tuple[Tensor, ...]] = []  # state, sigma, transition, prompt, mean of the steps' states
        self.edges: list[tuple[Tensor, ...]] = []  # child, call
        self.facts: list[Tensor] = []  # [e, FACTS but the last] of the steps' edges, on the CPU
        self.log_probs: list[Tensor] = []  # [e] of the same, on the device until they are read at once
        self.num_calls = self.num_edges = 0

    def add(self, node: tuple[Tensor, ...], known: Tensor, child: Tensor, parent: Tensor) -> Tensor:
        """Records nodes and their children; returns the call and edge of each child [c, 2], -1 where it is no decision.

        Args:
            node: state, sigma, transition, prompt and mean of n states; sigma and prompt on the CPU. known: [n, 6]
                whether the step from each state is a decision, and the facts of the step but the last, on the CPU.
                child: [c, ...]. parent: [c] the state of each, on the CPU.
        """
        chosen = known[:, 0] > 0
        if chosen.all():  # nothing to pick
            call, edge, origin, drawn = parent + self.num_calls, torch.arange(len(parent)), parent, child
            edge += self.num_edges
        else:
            call = torch.where(chosen, chosen.cumsum(0) - 1 + self.num_calls, -1)[parent]  # [c]
            is_edge = call >= 0
            edge = torch.where(is_edge, is_edge.cumsum(0) - 1 + self.num_edges, -1)
            origin, drawn = parent[is_edge], child[rows_of(is_edge, child.device)]
            node = tuple(tensor[rows_of(chosen, tensor.device)] for tensor in node)
            parent = chosen.cumsum(0)[origin] - 1  # of each drawn one, among the picked
        self.nodes.append(node)
        self.edges.append((drawn, parent + self.num_calls))
        mean, std = node[4][parent.to(child.device)], column(known[origin, 4].to(child.device), child)
        density = reduce_elements(gaussian_log_prob(drawn.float(), mean, std), self.reduction)
        self.facts.append(known[origin, 1:])
        self.log_probs.append(density)
        self.num_calls += int(chosen.sum())
        self.num_edges += len(drawn)
        return torch.stack([call, edge], 1)

    def decided(self, latents: Tensor) -> FlowDecisions:
        """Returns the decisions recorded so far; none on latents like `latents` where nothing was recorded."""
        if not self.nodes:
            return FlowDecisions.none(latents)
        return FlowDecisions(
            *(torch.cat(parts) for table in (self.nodes, self.edges) for parts in zip(*table, strict=True))
        )

    def block(self, taken: Tensor) -> DecisionBlock:
        """Returns the block of the decisions [B, tree steps, 2] on the paths of B leaves, aligned to the left.

        Paths may have their decisions at different steps.
        """
        if not self.nodes:
            return DecisionBlock.none(len(taken))
        calls, edges = taken.unbind(2)
        is_there = edges >= 0
        order = (~is_there).to(torch.int8).argsort(dim=1, stable=True)[:, : int(is_there.sum(1).max())]
        call, edge = calls.gather(1, order), edges.gather(1, order)
        leaves = torch.bincount(edge[edge >= 0])  # how many samples pass each edge
        weight = torch.where(edge >= 0, 1.0 / leaves[edge.clamp(min=0)], torch.zeros(()))
        facts = torch.cat([torch.cat(self.facts), torch.cat(self.log_probs).cpu()[:, None]], 1)
        known = torch.cat([facts, torch.zeros(1, len(FACTS))])[edge]  # [B, K, FACTS]; the last is read by edge -1
        return DecisionBlock(call, edge, weight, dict(zip(FACTS, known.unbind(2), strict=True)))


def numbers_of(step: Step, tree_step: int) -> tuple[float, ...]:
    """Returns the transition of a step, its level, whether it is a decision, and its facts but the log-prob."""
    move = step.transition
    facts = (float(tree_step), step.sigma, step.sigma_next, move.std, abs(move.velocity))
    return move.state, move.velocity, move.std, step.sigma, float(step.is_decision), *facts


def rows_of(chosen: Tensor, device: torch.device) -> Tensor:
    """Returns the row numbers of a mask [n] on the CPU as a tensor on the device, without a synchronisation."""
    return chosen.nonzero().squeeze(1).to(device)
