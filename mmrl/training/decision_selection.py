"""The decisions of an optimizer step on all processes, among which a loss selects some."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.contracts import DecisionSelecting, LossBatch
from mmrl.core.keys import generator
from mmrl.training.processes import Processes


@dataclass(frozen=True)
class Entries:
    """The N decisions of weight above 0 of some samples, on the CPU."""

    log_prob: Tensor  # [N] float64, under the weights that sampled them
    advantages: Tensor  # [N] float64
    weight: Tensor  # [N] float64
    group: Tensor  # [N] int64: of the sample

    @classmethod
    def of(cls, log_prob: Tensor, batch: LossBatch) -> "Entries":
        """Returns the decisions of a batch whose log-probs are [B, K], in the order of rows."""
        inside = batch.weight > 0

        def kept(values: Tensor) -> Tensor:
            return values[inside].detach().cpu()

        group = kept(batch.group[:, None].expand_as(batch.weight))
        advantages, weight = kept(batch.advantages).double(), kept(batch.weight).double()
        return cls(kept(log_prob.to(batch.weight)).double(), advantages, weight, group)

    @classmethod
    def join(cls, parts: Sequence["Entries"]) -> "Entries":
        """Returns the decisions of all parts, one part after the other."""
        nothing = torch.zeros(0, dtype=torch.float64)
        every = (cls(nothing, nothing, nothing, torch.zeros(0, dtype=torch.int64)), *parts)
        return cls(
            torch.cat([one.log_prob for one in every]),
            torch.cat([one.advantages for one in every]),
            torch.cat([one.weight for one in every]),
            torch.cat([one.group for one in every]),
        )


def select_everywhere(loss: DecisionSelecting, own: Entries, processes: Processes, step: int) -> Tensor:
    """Returns which decisions of this process [N] (bool) the loss selects. Every process must call it.

    The loss sees the decisions of all processes, in the order of their groups. A group is wholly on one process, so
    neither this order nor the randomness, which hangs on the numbers of the groups and of the optimizer step in its
    iteration, depends on the processes.
    """
    begin = processes.count_before(len(own.group))
    every = Entries.join(processes.gather([own]))
    if not len(every.group):
        return torch.zeros(0, dtype=torch.bool)
    order = every.group.sort(stable=True).indices
    source = generator("selected decisions", step, *every.group.unique().tolist())
    selected = torch.zeros(len(order), dtype=torch.bool)
    selected[order] = loss.select(every.log_prob[order], every.advantages[order], every.weight[order], source)
    return selected[begin : begin + len(own.group)]
