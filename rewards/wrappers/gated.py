"""A reward that counts only where another one is passed."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch
from mmrl.core.reward_batches import select

from ..base.wrapper import RewardWrapper, check_judges_samples, score_inner


@dataclass(frozen=True)
class Gated(RewardWrapper):
    """r where the reward `gate` is at least `threshold`, else `otherwise`.

    Such as a slow judge that is asked about answers in the right format only (SophiaVL-R1 asks its thinking model
    where the answer scores at least 0.2, arXiv 2505.17018): a reward that judges samples sees only those that pass. The
    mix `gate` does the same for all rewards of a run. NaN where the gate is NaN, which is neither open nor shut.

    Raises ValueError for numbers that are not finite, or a gate that judges something else than samples.
    """

    reward: Reward
    gate: Reward
    threshold: float = 0.5
    otherwise: float = 0.0

    source: ClassVar[str] = "Fan et al. 2025 (SophiaVL-R1), arXiv 2505.17018"
    range: ClassVar[tuple[float, float]] = (float("-inf"), float("inf"))  # that of the reward held, and `otherwise`
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()  # beside those of the rewards held
    batch_size: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.threshold) and math.isfinite(self.otherwise)):
            raise ValueError(f"threshold and otherwise must be finite, got {self.threshold} and {self.otherwise}")
        check_judges_samples(self.gate, "the gate")
        low, high = self.reward.range
        self.inherit(self.reward, range=(min(low, self.otherwise), max(high, self.otherwise)))

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises what the rewards held raise."""
        gate = score_inner(self.gate, batch).detach()
        is_open, shut = gate >= self.threshold, torch.where(gate.isnan(), torch.nan, self.otherwise)  # [B]
        if self.reward.granularity != "sample":  # a group has to stay whole
            return torch.where(is_open, score_inner(self.reward, batch).to(gate.device), shut)
        rows = is_open.cpu().nonzero()[:, 0]
        if not len(rows):
            return shut
        return shut.index_put((rows.to(shut.device),), score_inner(self.reward, select(batch, rows)).to(shut.device))
