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
        group = batch.group[:, None].expand_as(batch.weight)[inside].cpu()
        values = (log_prob.to(batch.weight), batch.advantages, batch.weight)
        return cls(*(part[inside].detach().double().cpu() for part in values), group)

    @classmethod
    def join(cls, parts: Sequence["Entries"]) -> "Entries":
        """Returns the decisions of all parts, one part after the other."""
        nothing = torch.zeros(0, dtype=torch.float64)
        empty = cls(nothing, nothing, nothing, torch.zeros(0, dtype=torch.int64))
        columns = zip(*((one.log_prob, one.advantages, one.weight, one.group) for one in (empty, *parts)), strict=True)
        return cls(*(torch.cat(column) for column in columns))


def select_everywhere(loss: DecisionSelecting, own: Entries, processes: Processes) -> Tensor:
    """Returns which decisions of this process [N] (bool) the loss selects. Every process must call it.

    The loss sees the decisions of all processes, in the order of their groups. A group is wholly on one process, so
    neither this order nor the randomness, which hangs on the numbers of the groups, depends on the processes.
    """
    begin = processes.count_before(len(own.group))
    every = Entries.join(processes.gather([own]))
    if not len(every.group):
        return torch.zeros(0, dtype=torch.bool)
    order = every.group.sort(stable=True).indices
    source = generator("selected decisions", *every.group.unique().tolist())
    sorted_parts = (part[order] for part in (every.log_prob, every.advantages, every.weight))
    selected = torch.zeros(len(order), dtype=torch.bool)
    selected[order] = loss.select(*sorted_parts, source)
    return selected[begin : begin + len(own.group)]
