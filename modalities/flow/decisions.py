"""The decisions of flow rollouts, and the conditioning of the network: each state is stored once."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from mmrl.core.data import DecisionBlock
from mmrl.core.forward_outputs import GaussianDecisions
from mmrl.core.numerics import Reduction
from mmrl.system.host_memory import on_host


@dataclass(frozen=True)
class Conditioning:
    """The inputs of the network for P prompts: text states, pooled text ...; each [P, ...]."""

    tensors: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.tensors[0])

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of all inputs."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def __getitem__(self, rows: Tensor) -> "Conditioning":
        """Returns the conditioning of the prompts `rows` [n] int64."""
        there = rows.to(self.tensors[0].device)
        return Conditioning(tuple(tensor[there] for tensor in self.tensors))

    @classmethod
    def join(cls, parts: "Sequence[Conditioning]") -> "Conditioning":
        """Joins the conditioning of prompts in order."""
        return cls(tuple(torch.cat(tensors) for tensors in zip(*(part.tensors for part in parts), strict=True)))


@dataclass(frozen=True)
class FlowDecisions:
    """The decisions of a flow rollout: N states at which a trained step began, and E next states sampled from them.

    What says which states and at which levels is in the CPU's memory, so that nobody waits for a GPU to read it.
    """

    state: Tensor  # [N, ...] latents, as stored
    sigma: Tensor  # [N] float32, on the CPU
    transition: Tensor  # [N, 3] float32: state, velocity and std of each step's Transition
    prompt: Tensor  # [N] int64, on the CPU
    mean: Tensor  # [N, ...] float32: the mean of the next latents at sampling
    child: Tensor  # [E, ...] the sampled next latents, as stored
    call: Tensor  # [E] int64, on the CPU: the state that each was sampled from

    @classmethod
    def none(cls, latents: Tensor) -> "FlowDecisions":
        """Returns no decisions, with the shape, dtype and device of the latents."""
        empty, integers = latents[:0], torch.zeros(0, dtype=torch.int64)
        transition = torch.zeros(0, 3, device=latents.device)
        return cls(empty, torch.zeros(0), transition, integers, empty.float(), empty, integers)

    @classmethod
    def join(cls, parts: "Sequence[FlowDecisions]", num_prompts: Sequence[int]) -> "FlowDecisions":
        """Joins decisions in order; prompt and call numbers are shifted."""
        shifted = [
            replace(
                part, prompt=part.prompt + sum(num_prompts[:n]), call=part.call + sum(len(p.state) for p in parts[:n])
            )
            for n, part in enumerate(parts)
        ]
        return cls(*(torch.cat([getattr(part, item.name) for part in shifted]) for item in fields(cls)))

    def on_host(self) -> "FlowDecisions":
        """Returns the same decisions with all latents in the CPU's memory."""
        return replace(self, state=on_host(self.state), mean=on_host(self.mean), child=on_host(self.child))

    def forward_outputs(
        self, block: DecisionBlock, calls: Tensor, mean: Tensor, reduction: Reduction
    ) -> GaussianDecisions:
        """Returns the decisions behind the network calls `calls` [n], whose means are `mean` [n, ...].

        `calls` and the block are on the CPU.
        """
        device = self.transition.device
        position = torch.full((len(self.state),), -1)
        position[calls] = torch.arange(len(calls))
        edges = (position[self.call] >= 0).nonzero().squeeze(1)  # [e]
        edge_position = torch.full((len(self.child) + 1,), -1)  # the last is read by edge -1
        edge_position[edges] = torch.arange(len(edges))
        entry = edge_position[block.edge].to(device)  # [B, K]
        transition = rows_of(self.transition, calls, device)
        return GaussianDecisions(
            mean=mean,
            std=transition[:, 2],
            sample=rows_of(self.child, edges, device),
            call=position[self.call[edges]].to(device),
            entry=entry,
            reduction=reduction,
            velocity=transition[:, 1],
            step=_step_size(block, entry),
        )


def _step_size(block: DecisionBlock, entry: Tensor) -> Tensor | None:
    """Returns sigma - sigma_next [B, K], 0 where the view has no entry; None for a block without noise levels."""
    if "sigma_next" not in block.facts:
        return None
    size = (block.facts["sigma"] - block.facts["sigma_next"]).to(entry.device)
    return torch.where(entry >= 0, size, torch.zeros_like(size))


def linear_mean(transition: Tensor, latents: Tensor, velocity: Tensor) -> Tensor:
    """Returns the mean of the next latents in float32, from transition [n, 3], latents and velocity [n, ...]."""
    return column(transition[:, 0], latents) * latents.float() + column(transition[:, 1], latents) * velocity


def rows_of(tensor: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """Returns some rows, on a device, of a tensor that may be in the CPU's memory."""
    return tensor[rows.to(tensor.device)].to(device, non_blocking=True)


def column(values: Tensor, like: Tensor) -> Tensor:
    """Reshapes values [n] to [n, 1, ...], which multiply the rows of `like` [n, ...]."""
    return values.view(-1, *[1] * (like.dim() - 1))
