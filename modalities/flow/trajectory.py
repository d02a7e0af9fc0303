"""The trajectories of samples, from which gradients of rewards start; kept only where a loss needs them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmrl.core.data import cat_shifted


@dataclass(frozen=True)
class Trajectory:
    """T steps of B samples: N states at which network calls were made, and M steps from them.

    States and steps that several samples share stand once. Samples of fewer steps begin later: the last column is the
    last step of all samples, and -1 stands where there is no step.
    """

    state: Tensor  # [N, ...] latents, as stored
    sigma: Tensor  # [N] float32, on the CPU
    prompt: Tensor  # [N] int64, on the CPU
    transition: Tensor  # [M, 3] float32: state, velocity and std of each step's Transition
    noise: Tensor  # [Z, ...] float32: what random steps added to their means
    end: Tensor  # [B, ...] the last latents, as stored
    end_sigma: Tensor  # [B] float32
    node: Tensor  # [B, T] int64: number of the state before each step; on the CPU, as the next three
    step: Tensor  # [B, T] int64: number of the step
    added: Tensor  # [B, T] int64: number of the step's noise; -1 where it had none
    is_decision: Tensor  # [B, T] bool

    @property
    def num_steps(self) -> int:
        """Returns T, the number of steps of the longest samples."""
        return self.node.shape[1]

    def from_the_start(self) -> "Trajectory":
        """Returns the same trajectory aligned at the first step of each sample, so that shared steps share a column."""
        absent = (self.node < 0).sum(1, keepdim=True)
        column = (torch.arange(self.num_steps) + absent) % self.num_steps  # [B, T]
        tables = {name: getattr(self, name).gather(1, column) for name in ("node", "step", "added", "is_decision")}
        return replace(self, **tables)

    @classmethod
    def join(cls, parts: "Sequence[Trajectory]", num_prompts: Sequence[int]) -> "Trajectory":
        """Joins trajectories in order; prompt, state, step and noise numbers are shifted."""
        width = max(part.num_steps for part in parts)

        def widened(name: str) -> list[Tensor]:
            tables = [getattr(part, name).long() for part in parts]
            return [pad(table, (width - table.shape[1], 0), value=-1) for table in tables]

        tensors = ("state", "sigma", "transition", "noise", "end", "end_sigma")
        return cls(
            **{name: torch.cat([getattr(part, name) for part in parts]) for name in tensors},
            prompt=cat_shifted([part.prompt for part in parts], num_prompts),
            node=cat_shifted(widened("node"), [len(part.state) for part in parts]),
            step=cat_shifted(widened("step"), [len(part.transition) for part in parts]),
            added=cat_shifted(widened("added"), [len(part.noise) for part in parts]),
            is_decision=torch.cat(widened("is_decision")) > 0,
        )


@dataclass
class TrajectoryRecorder:
    """A collection of the states, steps and noises of a trajectory, filled during sampling."""

    _nodes: list[tuple[Tensor, ...]] = field(default_factory=list)  # state, sigma and prompt of the states
    _steps: list[Tensor] = field(default_factory=list)  # transitions
    _noise: list[Tensor] = field(default_factory=list)
    _counts: list[int] = field(default_factory=lambda: [0, 0, 0])  # of each of these

    def add(
        self,
        node: tuple[Tensor, Tensor, Tensor],
        transition: Tensor,
        origin: Tensor,
        parent: Tensor,
        noise: Tensor | None,
    ) -> Tensor:
        """Records one step of a tree.

        Returns the numbers of the state, step and noise (-1: none) before each child, and whether the step is a
        decision: [c, 4] int64, on the CPU as all indices.

        Args:
            node: state [n, ...] and, on the CPU, sigma [n] and prompt [n] of each state. transition: [m, 3] of each
            step. origin: [m, 2] the state that each step leaves, and whether it is a decision. parent: [c] the step to
            each child. noise: [c, ...] added to the means of the children; None: no noise.
        """
        num_nodes, num_steps, num_noises = self._counts
        added = torch.full_like(parent, -1) if noise is None else torch.arange(len(parent)) + num_noises
        if noise is not None:
            self._noise.append(noise.float())
        self._nodes.append(node)
        self._steps.append(transition)
        sizes = (len(node[0]), len(transition), 0 if noise is None else len(noise))
        self._counts = [before + more for before, more in zip(self._counts, sizes, strict=True)]
        return torch.stack([origin[parent, 0] + num_nodes, parent + num_steps, added, origin[parent, 1]], 1)

    def trajectory(self, passed: Sequence[Tensor], end: Tensor, end_sigma: Tensor) -> Trajectory:
        """Returns the trajectory of B samples; `passed` holds the numbers [b, T, 4] of some samples each.

        Samples of one part have the same count of steps T.
        """
        width = max(numbers.shape[1] for numbers in passed)
        aligned = torch.cat([pad(numbers, (0, 0, width - numbers.shape[1], 0), value=-1) for numbers in passed])
        node, step, added, is_decision = aligned.unbind(2)  # [B, T] each
        state, sigma, prompt = (torch.cat(parts) for parts in zip(*self._nodes, strict=True))
        noise = torch.cat(self._noise) if self._noise else state[:0].float()
        transition = torch.cat(self._steps)
        return Trajectory(state, sigma, prompt, transition, noise, end, end_sigma, node, step, added, is_decision > 0)
