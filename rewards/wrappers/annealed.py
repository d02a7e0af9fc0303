"""A change from one reward to another over the iterations of a run, or from one to nothing."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.schedules import Schedule, Shape

from ..base.wrapper import RewardWrapper, number_mask, score_inner


@dataclass(frozen=True)
class Annealed(RewardWrapper):
    """A mixture of two rewards that moves over the run: (1 - a) r + a r2, a from 0 at iteration `first` to 1 at `last`.

    r2 is the reward `then`, or 0. For instance from a soft reward, which early answers can earn, to the strict reward
    that is meant (curricula of rewards, e.g. Vision-R1's tightening thresholds, arXiv 2503.18013). A weight of the mix
    that changes does the same for whole terms; this one can stand inside of other wrappers. Held-out scores are those
    of the end of the run. A reward whose share is 0 is not called. Both may be dense, of one granularity.

    Raises ValueError where the two judge different things (samples, groups), or for a `last` that is not after `first`.
    """

    reward: Reward  # the reward at the start
    last: int  # the iteration from which the second reward counts alone
    then: Reward | None = None  # the reward at the end; null: 0
    first: int = 0  # the last iteration at which the first reward counts alone
    shape: Shape = "linear"  # how the share moves between the two
    _schedule: Schedule = field(init=False, repr=False, compare=False)

    source: ClassVar[str] = "Zhan et al. 2025 (Vision-R1), arXiv 2503.18013 (progressive rules)"
    holds_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.reward.range
        other_low, other_high = (0.0, 0.0) if self.then is None else self.then.range
        if self.then is not None and self.then.granularity != self.reward.granularity:
            raise ValueError(f"both must judge the same, got {self.reward.granularity} and {self.then.granularity}")
        schedule = Schedule(start=0.0, end=1.0, first=self.first, last=self.last, shape=self.shape)
        self.override(_schedule=schedule)
        self.inherit(
            self.reward,
            range=(min(low, other_low), max(high, other_high)),
            differentiable=self.reward.differentiable and (self.then is None or self.then.differentiable),
        )

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that of the inner rewards; the same sample scores otherwise in a later iteration."""
        return replace(super().declaration, follows_iteration=True, is_changing=True)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] (dense: [B, K]) float32; raises what the inner rewards raise."""
        share = self._schedule(batch.iteration)
        terms = [(self.reward, 1 - share)] + ([] if self.then is None else [(self.then, share)])
        scores = [part * score_inner(reward, batch) for reward, part in terms if part > 0]
        if not scores:
            mask = number_mask(self.reward, batch)
            return torch.zeros(len(batch) if mask is None else mask.shape)
        return torch.stack([one.to(scores[0].device) for one in scores]).sum(0)
