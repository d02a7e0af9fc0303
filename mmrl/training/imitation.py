"""Samples that a loss imitates: which of a rollout's candidates are good enough."""

from dataclasses import replace

import torch
from torch import Tensor

from mmrl.core.contracts import Imitating, Loss, LossBatch
from mmrl.core.numerics import group_rank
from mmrl.training.processes import Processes
from mmrl.training.rollouts import Collected


def with_imitated(
    collected: Collected, batch: LossBatch | None, loss: Loss, processes: Processes
) -> tuple[LossBatch | None, dict[str, float]]:
    """Returns the batch with the samples that the loss imitates, and metrics. Every process must call it.

    Candidates are the controls with decisions: they enter no statistic of their group, and have the advantage 0.
    """
    if not isinstance(loss, Imitating):
        return batch, {}
    counts = torch.zeros(3, dtype=torch.float64)  # candidates, right ones, imitated ones
    if batch is not None:
        assert collected.rollout is not None, "a batch is of a rollout"
        own = collected.scores.select(collected.local_rows)
        has_decisions = (collected.rollout.blocks[0].edge >= 0).any(1)
        candidates = own.is_control & has_decisions
        is_kept = torch.isin(own.prompt_index, torch.tensor(collected.kept, dtype=own.prompt_index.dtype))
        right = candidates & is_kept & (own.total > loss.imitate_above)  # false for a sample that could not be judged
        chosen = first_of_groups(right, own.group, loss.imitate_at_most)
        counts = torch.stack([candidates.sum(), right.sum(), chosen.sum()]).double()
        is_imitated = chosen.to(batch.weight.device)
        weight = torch.where(is_imitated[:, None], torch.ones_like(batch.weight), batch.weight)
        batch = replace(batch, weight=weight, is_imitated=is_imitated)
    tried, good, used = torch.stack(processes.gather([counts])).sum(0).tolist()
    return batch, {"imitation/candidates": tried, "imitation/right": good, "imitation/samples": used}


def first_of_groups(among: Tensor, group: Tensor, most: int) -> Tensor:
    """Returns [B] bool: the first `most` of `among` [B] in each group [B]."""
    return among & (group_rank(torch.zeros(len(group), dtype=torch.float64), group, among) < most)
