"""Minibatches: an iteration's samples with their advantages, and which of them each optimizer step learns from."""

from collections.abc import Sequence

import torch

from mmrl.core.config import UpdateSettings
from mmrl.core.contracts import Advantage, LossBatch, Selective
from mmrl.core.keys import generator
from mmrl.scoring.metrics import advantages_of
from mmrl.training.rollouts import Collected


def batch_of(collected: Collected, advantage: Advantage, device: torch.device) -> LossBatch | None:
    """Returns this process's samples with their advantages, which depend on the scores of all processes."""
    if collected.rollout is None:
        return None
    scores = collected.scores
    own = scores.select(collected.local_rows)
    update_mask = advantage.update_mask(scores, collected.paths) if isinstance(advantage, Selective) else scores.valid
    return LossBatch(
        advantages=collected.own(advantages_of(scores, advantage, collected.paths)).to(device),
        weight=(collected.own(update_mask) & own.valid[:, None]).to(device, torch.float32),
        group=own.group.to(device),
        scores=torch.where(own.valid, own.total, torch.zeros(())).to(device),
    )


def minibatches(kept: Sequence[int], updates: UpdateSettings, seed: int, iteration: int) -> list[list[int]]:
    """Returns the prompt indices of each optimizer step, the same on all processes."""
    steps = []
    for epoch in range(updates.epochs):
        order = torch.randperm(len(kept), generator=generator(seed, "minibatch", iteration, epoch))
        parts = order.tensor_split(updates.minibatches)  # chunk would make 3 parts of 5 groups, not 4
        steps += [[kept[int(n)] for n in part] for part in parts if len(part)]
    return steps
